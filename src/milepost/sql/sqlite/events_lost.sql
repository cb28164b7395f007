SELECT s.place < since OR s.place > coalesce((SELECT max(place) FROM feed), 0)
    OR s.place + 1 < coalesce((SELECT min(place) FROM feed), 0)
  FROM feed_switch, (SELECT max(CAST(:base AS INTEGER), CAST(:key AS INTEGER)) AS place) s
