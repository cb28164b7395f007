-- What a complete full run did not see, and no later one (H-84). A page of it, in
-- the order of the keys: a statement's way back takes as much as all that it changes.
UPDATE raw SET missing_in = :root_id::uuid
 WHERE pipeline_id = :pipeline_id
   AND key IN (SELECT key FROM raw
                WHERE pipeline_id = :pipeline_id AND key >= :after::text AND seen < :seen
                  AND removed_by IS NULL AND missing_in IS NULL
                ORDER BY key
                LIMIT :most::bigint)
RETURNING key
