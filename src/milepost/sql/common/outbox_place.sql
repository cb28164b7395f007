UPDATE outbox SET place = :last + fresh.k
  FROM (SELECT id, row_number() OVER (ORDER BY n) AS k
          FROM outbox
         WHERE channel = :channel AND place IS NULL AND delivered_at IS NULL AND dead_at IS NULL
         ORDER BY n
         LIMIT :most) AS fresh
 WHERE outbox.id = fresh.id
RETURNING place
