-- Jobs as people search for them: newest first, by an index. Templates; `milepost/store/search.py` fills them in.

-- name: search:page
-- The ids that a source gives and the filter lets through, with the size of what each row holds.
-- postgres
SELECT seen.id::text,
       (SELECT coalesce(octet_length(payload), 0) + coalesce(octet_length(result), 0) + coalesce(octet_length(error), 0)
          FROM job WHERE job.id = seen.id)
  FROM ({source}) AS seen
 WHERE {fits}
 ORDER BY seen.id DESC
 LIMIT :most
-- sqlite
-- Rows come in the order of their source: an order of its own would have all of it read first.
SELECT seen.id,
       (SELECT coalesce(length(payload), 0) + coalesce(length(result), 0) + coalesce(length(error), 0)
          FROM job WHERE job.id = seen.id)
  FROM ({source}) AS seen
 WHERE {fits}
 LIMIT :most

-- name: search:hits
-- The same, and nothing but the ids.
-- postgres
SELECT seen.id AS hit_id FROM ({source}) AS seen WHERE {fits} ORDER BY seen.id DESC LIMIT :most
-- sqlite
SELECT seen.id AS hit_id FROM ({source}) AS seen WHERE {fits} LIMIT :most

-- name: search:lines
-- A page as a list shows it, and before each row the last one of its source that was looked at, if it looked at as
-- many as it may: one row at least.
-- postgres
SELECT looked.id, true, shown.*
  FROM (SELECT (SELECT last.id::text FROM ({looked}) AS last ORDER BY last.id DESC
                 LIMIT 1 OFFSET :look::bigint - 1) AS id) AS looked
  LEFT JOIN LATERAL (SELECT {columns:line}
                       FROM ({hits}) AS hit
                      CROSS JOIN LATERAL (SELECT * FROM job WHERE job.id = hit.hit_id OFFSET 0) AS job) AS shown
    ON true
-- sqlite
SELECT looked.id, 1, shown.*
  FROM (SELECT (SELECT last.id FROM ({looked}) AS last LIMIT 1 OFFSET :look - 1) AS id) AS looked
  LEFT JOIN (SELECT {columns:line} FROM ({hits}) AS hit CROSS JOIN job ON job.id = hit.hit_id) AS shown

-- name: search:again
-- Jobs that a list shows already: whether the filter lets each of them through still. Before each row, how many
-- jobs it lets through between the bounds of the list, shown or not: one row at least.
-- postgres
SELECT found.number, shown.*
  FROM (SELECT count(*) AS number FROM ({hits}) AS every) AS found
  LEFT JOIN LATERAL (SELECT hit.still, {columns:line}
                       FROM (SELECT seen.id AS hit_id, coalesce(({fits}), false) AS still
                               FROM (SELECT job.id, {seen} FROM job WHERE job.id = ANY(:shown::uuid[])) AS seen
                             OFFSET 0) AS hit
                      CROSS JOIN LATERAL (SELECT * FROM job WHERE job.id = hit.hit_id OFFSET 0) AS job) AS shown
    ON true
-- sqlite
SELECT found.number, shown.*
  FROM (SELECT count(*) AS number FROM ({hits}) AS every) AS found
  LEFT JOIN (SELECT hit.still, {columns:line}
               FROM (SELECT seen.id AS hit_id, CASE WHEN {fits} THEN 1 ELSE 0 END AS still
                       FROM (SELECT job.id, {seen} FROM job
                              WHERE job.id IN (SELECT value FROM json_each(:shown))) AS seen) AS hit
              CROSS JOIN job ON job.id = hit.hit_id) AS shown

-- name: search:counted
-- How many rows of a source have each {by}, and how many of them the filter lets through.
-- (CASE: so SQLite leaves out the rest of a condition that cannot change its answer. It goes through all of one
-- whose value is asked for, three times as long.)
SELECT told.word, count(*), count(told.fits)
  FROM (SELECT seen.{by} AS word, CASE WHEN {fits} THEN 1 END AS fits FROM ({source}) AS seen) AS told
 GROUP BY told.word

-- name: search:succeeded
-- The same for the state that has no index: of the newest jobs of any state, under no name.
SELECT NULL, count(*), count(told.fits)
  FROM (SELECT CASE WHEN seen.state = 'SUCCEEDED' AND {fits} THEN 1 END AS fits FROM ({source}) AS seen) AS told

-- name: search:some
-- A source for counts: the ids of several parts, each of which ends by itself.
-- postgres
SELECT ids.id, {seen}
  FROM ({ids}) AS ids
 CROSS JOIN LATERAL (SELECT {seen} FROM job WHERE job.id = ids.id OFFSET 0) AS whole
-- sqlite
SELECT ids.id, {seen} FROM ({ids}) AS ids CROSS JOIN job ON job.id = ids.id

-- name: search:first
-- A part of it that would not end by itself: so many jobs of a state, in the order of its index.
-- postgres
-- A limit that the planner does not know keeps it on the index: it would look for the first ones in the table.
SELECT job.id FROM job WHERE state = '{state}' ORDER BY {order} LIMIT (SELECT :look::bigint)
-- sqlite
SELECT job.id FROM job INDEXED BY {index} WHERE state = '{state}' LIMIT :look

-- name: search:fits
-- The condition of a filter on a row of its source.
-- postgres
{words}
   AND (:superseded::boolean IS NULL
        OR EXISTS (SELECT 1 FROM job AS newer WHERE newer.rerun_of = seen.id) = :superseded::boolean)
   AND (:created_low::bigint IS NULL
        OR seen.created_at >= 'epoch'::timestamptz + :created_low::bigint{micros}
           AND seen.created_at < 'epoch'::timestamptz + :created_high::bigint{micros})
   AND (:created::text IS NULL OR EXISTS (
        SELECT 1 FROM jsonb_array_elements(:created::text::jsonb) AS t (pair)
         WHERE seen.created_at >= 'epoch'::timestamptz + (t.pair ->> 0)::bigint{micros}
           AND seen.created_at < 'epoch'::timestamptz + (t.pair ->> 1)::bigint{micros}))
   AND (:ran_low::bigint IS NULL
        OR :not_run::boolean AND {ran} IS NULL
        OR {ran} >= :ran_low::bigint{micros} AND {ran} < :ran_high::bigint{micros})
   AND (:ran::text IS NULL OR :not_run::boolean AND {ran} IS NULL OR EXISTS (
        SELECT 1 FROM jsonb_array_elements(:ran::text::jsonb) AS t (pair)
         WHERE {ran} >= (t.pair ->> 0)::bigint{micros} AND {ran} < (t.pair ->> 1)::bigint{micros}))
   AND (:tags::text IS NULL OR NOT EXISTS (
        SELECT 1 FROM jsonb_array_elements(:tags::text::jsonb) AS t (one)
         WHERE coalesce((t.one -> 'values') ? (seen.tags ->> (t.one ->> 'name')), false)
               = (t.one ->> 'negated')::boolean))
   AND (:has_error::boolean IS FALSE OR seen.error_type IS NOT NULL OR seen.error IS NOT NULL)
   AND (:errors::text IS NULL OR NOT EXISTS (
        SELECT 1 FROM jsonb_array_elements(:errors::text::jsonb) AS t (one)
         WHERE (coalesce((t.one -> 'words') ?| ARRAY[seen.error_type, seen.error_code, seen.fingerprint], false)
                OR EXISTS (SELECT 1 FROM jsonb_array_elements(t.one -> 'texts') AS said (words)
                            WHERE CASE WHEN position(said.words ->> 0 IN seen.error) > 0
                                       THEN position(said.words ->> 1 IN {message}) > 0
                                            AND {message} NOT LIKE 'sealed:%' END))
               = (t.one ->> 'negated')::boolean))
-- sqlite
{words}
   AND (:superseded IS NULL
        OR EXISTS (SELECT 1 FROM job AS newer WHERE newer.rerun_of = seen.id) = :superseded)
   AND (:created_low IS NULL OR seen.created_at >= :created_low AND seen.created_at < :created_high)
   AND (:created IS NULL OR EXISTS (
        SELECT 1 FROM json_each(:created) AS t
         WHERE seen.created_at >= json_extract(t.value, '$[0]') AND seen.created_at < json_extract(t.value, '$[1]')))
   AND (:ran_low IS NULL
        OR :not_run AND {ran} IS NULL
        OR {ran} >= :ran_low AND {ran} < :ran_high)
   AND (:ran IS NULL OR :not_run AND {ran} IS NULL OR EXISTS (
        SELECT 1 FROM json_each(:ran) AS t
         WHERE {ran} >= json_extract(t.value, '$[0]') AND {ran} < json_extract(t.value, '$[1]')))
   AND (:tags IS NULL OR NOT EXISTS (
        SELECT 1 FROM json_each(:tags) AS t
         WHERE EXISTS (SELECT 1 FROM json_each(seen.tags) AS tag, json_each(t.value, '$.values') AS one
                        WHERE tag.key = json_extract(t.value, '$.name') AND tag.value = one.value)
               = json_extract(t.value, '$.negated')))
   AND (NOT :has_error OR seen.error_type IS NOT NULL OR seen.error IS NOT NULL)
   AND (:errors IS NULL OR NOT EXISTS (
        SELECT 1 FROM json_each(:errors) AS t
         WHERE (EXISTS (SELECT 1 FROM json_each(t.value, '$.words') AS word
                         WHERE word.value IN (seen.error_type, seen.error_code, seen.fingerprint))
                OR EXISTS (SELECT 1 FROM json_each(t.value, '$.texts') AS said
                            WHERE CASE WHEN instr(seen.error, json_extract(said.value, '$[0]')) > 0
                                       THEN instr({message}, json_extract(said.value, '$[1]')) > 0
                                            AND {message} NOT LIKE 'sealed:%' END))
               = json_extract(t.value, '$.negated')))

-- name: search:looked
-- The last row of its source that a page looked at, if it looked at as many as it may.
-- postgres
SELECT looked.id::text, looked.created_at
  FROM ({source}) AS looked
 ORDER BY looked.id DESC
 LIMIT 1 OFFSET :look::bigint - 1
-- sqlite
SELECT looked.id, looked.created_at FROM ({source}) AS looked LIMIT 1 OFFSET :look - 1

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
state = v.value AND {unusual}

-- name: search_queued
-- Whether so many jobs are queued.
SELECT count(*) FROM (SELECT 1 FROM job WHERE state = 'QUEUED' LIMIT :look) AS queued

-- name: search_newest_queued
-- The newest job that is queued. The last of each queue and priority are newest, give or take some: a job has
-- its id a moment before it has its place in line.
WITH RECURSIVE named (queue) AS (
  SELECT min(queue) FROM job WHERE state = 'QUEUED'
  UNION ALL
  SELECT (SELECT min(queue) FROM job WHERE state = 'QUEUED' AND queue > named.queue)
    FROM named WHERE named.queue IS NOT NULL
), level (priority) AS (
  VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)
)
SELECT max(newest)
  FROM (SELECT (SELECT max(last.id)
                  FROM (SELECT {text:job.id} AS id FROM job
                         WHERE job.state = 'QUEUED' AND job.queue = named.queue AND job.priority = level.priority
                           AND job.limit_key IS NULL
                         ORDER BY job.limit_key DESC, job.queued_seq DESC LIMIT :most) AS last) AS newest
          FROM named CROSS JOIN level
         UNION ALL
        SELECT (SELECT max(last.id)
                  FROM (SELECT {text:job.id} AS id FROM job
                         WHERE job.state = 'QUEUED' AND job.queue = named.queue AND job.priority = level.priority
                           AND coalesce(job.limit_key, '') <> ''
                         ORDER BY job.queued_seq DESC LIMIT :most) AS last)
          FROM named CROSS JOIN level) AS every
