-- Jobs as people search for them: newest first, by an index. Templates; `milepost/store/search.py` fills them in.

-- name: search:page
-- The ids that a source gives and the filter lets through, with the size of what each row holds.
-- postgres
SELECT seen.id::text,
       (SELECT coalesce(octet_length(payload), 0) + coalesce(octet_length(result), 0) + coalesce(octet_length(error), 0)
          FROM job WHERE job.id = seen.id)
  FROM ({source}) AS seen
 WHERE {words}
   AND (:superseded::boolean IS NULL
        OR EXISTS (SELECT 1 FROM job AS newer WHERE newer.rerun_of = seen.id) = :superseded::boolean)
   AND (:created::text IS NULL OR EXISTS (
        SELECT 1 FROM jsonb_array_elements(:created::text::jsonb) AS t (pair)
         WHERE extract(epoch FROM seen.created_at) * 1000000 >= (t.pair ->> 0)::bigint
           AND extract(epoch FROM seen.created_at) * 1000000 < (t.pair ->> 1)::bigint))
   AND (:duration::text IS NULL
        OR :not_run::boolean AND (seen.started_at IS NULL OR seen.finished_at IS NULL AND seen.state <> 'RUNNING')
        OR EXISTS (
        SELECT 1
          FROM jsonb_array_elements(:duration::text::jsonb) AS t (pair),
               extract(epoch FROM CASE seen.state WHEN 'RUNNING' THEN {now} ELSE seen.finished_at END - seen.started_at)
                 AS ran (seconds)
         WHERE ran.seconds * 1000000 >= (t.pair ->> 0)::bigint AND ran.seconds * 1000000 < (t.pair ->> 1)::bigint))
   AND (:tags::text IS NULL OR NOT EXISTS (
        SELECT 1 FROM jsonb_array_elements(:tags::text::jsonb) AS t (one)
         WHERE coalesce((t.one -> 'values') ? (seen.tags ->> (t.one ->> 'name')), false)
               = (t.one ->> 'negated')::boolean))
   AND (:errors::text IS NULL OR NOT EXISTS (
        SELECT 1 FROM jsonb_array_elements(:errors::text::jsonb) AS t (one)
         WHERE (coalesce((t.one -> 'words') ?| ARRAY[seen.error_type, seen.error_code, seen.fingerprint], false)
                OR EXISTS (SELECT 1 FROM jsonb_array_elements_text(t.one -> 'texts') AS said (words)
                            WHERE position(said.words IN seen.error) > 0))
               = (t.one ->> 'negated')::boolean))
 ORDER BY seen.id DESC
 LIMIT :most
-- sqlite
SELECT seen.id,
       (SELECT coalesce(length(payload), 0) + coalesce(length(result), 0) + coalesce(length(error), 0)
          FROM job WHERE job.id = seen.id)
  FROM ({source}) AS seen
 WHERE {words}
   AND (:superseded IS NULL
        OR EXISTS (SELECT 1 FROM job AS newer WHERE newer.rerun_of = seen.id) = :superseded)
   AND (:created IS NULL OR EXISTS (
        SELECT 1 FROM json_each(:created) AS t
         WHERE seen.created_at >= json_extract(t.value, '$[0]') AND seen.created_at < json_extract(t.value, '$[1]')))
   AND (:duration IS NULL
        OR :not_run AND (seen.started_at IS NULL OR seen.finished_at IS NULL AND seen.state <> 'RUNNING')
        OR EXISTS (
        SELECT 1 FROM json_each(:duration) AS t
         WHERE CASE seen.state WHEN 'RUNNING' THEN {now} ELSE seen.finished_at END - seen.started_at
                 >= json_extract(t.value, '$[0]')
           AND CASE seen.state WHEN 'RUNNING' THEN {now} ELSE seen.finished_at END - seen.started_at
                 < json_extract(t.value, '$[1]')))
   AND (:tags IS NULL OR NOT EXISTS (
        SELECT 1 FROM json_each(:tags) AS t
         WHERE EXISTS (SELECT 1 FROM json_each(seen.tags) AS tag, json_each(t.value, '$.values') AS one
                        WHERE tag.key = json_extract(t.value, '$.name') AND tag.value = one.value)
               = json_extract(t.value, '$.negated')))
   AND (:errors IS NULL OR NOT EXISTS (
        SELECT 1 FROM json_each(:errors) AS t
         WHERE (EXISTS (SELECT 1 FROM json_each(t.value, '$.words') AS word
                         WHERE word.value IN (seen.error_type, seen.error_code, seen.fingerprint))
                OR EXISTS (SELECT 1 FROM json_each(t.value, '$.texts') AS said WHERE instr(seen.error, said.value) > 0))
               = json_extract(t.value, '$.negated')))
 ORDER BY seen.id DESC
 LIMIT :most

-- name: search:looked
-- How many rows of its source a page looked at, and which was the last.
SELECT count(*) OVER (), {text:looked.id}, looked.created_at
  FROM ({source}) AS looked
 ORDER BY looked.id
 LIMIT 1

-- name: search:walk
-- A source: jobs as they were created.
-- postgres
SELECT job.id, {seen} FROM job
 WHERE job.id >= :low::uuid AND job.id < :before::uuid
 ORDER BY job.id DESC LIMIT :look
-- sqlite
SELECT job.id, {seen} FROM job
 WHERE job.id >= :low AND job.id < :before
 ORDER BY job.id DESC LIMIT :look

-- name: search:found
-- A source: the jobs whose ids an index gives.
-- postgres
-- OFFSET: one look-up a row, whatever the planner takes their number to be.
SELECT ids.id, {seen}
  FROM (SELECT DISTINCT id FROM ({ids}) AS every ORDER BY id DESC LIMIT :look) AS ids
 CROSS JOIN LATERAL (SELECT {seen} FROM job WHERE job.id = ids.id OFFSET 0) AS whole
 ORDER BY ids.id DESC
-- sqlite
SELECT ids.id, {seen}
  FROM (SELECT DISTINCT id FROM ({ids}) AS every ORDER BY id DESC LIMIT :look) AS ids
 CROSS JOIN job ON job.id = ids.id
 ORDER BY ids.id DESC

-- name: search:each
-- The newest of each value that was asked for.
-- postgres
SELECT newest.id
  FROM unnest(:given::text[]) AS v (value)
 CROSS JOIN LATERAL (SELECT {id} AS id FROM {table}
                      WHERE {having} AND {id} >= :low::uuid AND {id} < :before::uuid
                      ORDER BY {id} DESC LIMIT :look) AS newest
-- sqlite
SELECT newest.value AS id
  FROM json_each(:given) AS v,
       json_each((SELECT json_group_array(id)
                    FROM (SELECT {id} AS id FROM {table}
                           WHERE {having} AND {id} >= :low AND {id} < :before
                           ORDER BY {id} DESC LIMIT :look))) AS newest

-- name: search:few
-- Jobs of a state that few have at a time, by the index of that state.
-- postgres
SELECT few.id
  FROM (SELECT job.id FROM job WHERE {having} OFFSET 0) AS few
 WHERE few.id >= :low::uuid AND few.id < :before::uuid
-- sqlite
SELECT job.id FROM job INDEXED BY {index} WHERE {having} AND +job.id >= :low AND +job.id < :before

-- name: search:run
-- Jobs of runs: the newest of each step and state. Those that run stand in another index on PostgreSQL.
-- postgres
SELECT newest.id
  FROM step
 CROSS JOIN unnest(:states::text[]) AS s (state)
 CROSS JOIN LATERAL (SELECT job.id FROM job
                      WHERE job.run_id = step.run_id AND job.step = step.number
                        AND job.state = s.state AND job.state <> 'RUNNING'
                        AND job.id >= :low::uuid AND job.id < :before::uuid
                      ORDER BY job.id DESC LIMIT :look) AS newest
 WHERE step.run_id = ANY(:given::uuid[])
-- sqlite
SELECT newest.value AS id
  FROM step
 CROSS JOIN json_each(:states) AS s
 CROSS JOIN json_each((SELECT json_group_array(id)
                         FROM (SELECT job.id FROM job
                                WHERE job.run_id = step.run_id AND job.step = step.number
                                  AND job.state = s.value
                                  AND job.id >= :low AND job.id < :before
                                ORDER BY job.id DESC LIMIT :look))) AS newest
 WHERE step.run_id IN (SELECT value FROM json_each(:given))

-- name: search:unusual
-- A condition in the words of the index `job_state`.
state = v.value AND state IN {unusual}

-- name: search_queued
-- Whether so many jobs are queued.
SELECT count(*) FROM (SELECT 1 FROM job WHERE state = 'QUEUED' LIMIT :look) AS queued
