SELECT source, message_id, at, error, content
  FROM inbox
 WHERE error IS NOT NULL AND (:source IS NULL OR source = :source)
 ORDER BY at DESC
 LIMIT :most
