-- Throws away what nobody will publish: left by failed or lost attempts, or by deleted runs. What a
-- stopped run took back is kept with it: a run that resumes it publishes the rest.
-- It hops through the key from attempt to attempt: one may have staged a million, all wanted.
WITH RECURSIVE attempt (producer_id, fence) AS (
  (SELECT producer_id, fence FROM staged ORDER BY producer_id, fence LIMIT 1)
  UNION ALL
  SELECT after.producer_id, after.fence
    FROM attempt CROSS JOIN LATERAL (
         SELECT s.producer_id, s.fence FROM staged s
          WHERE (s.producer_id, s.fence) > (attempt.producer_id, attempt.fence)
          ORDER BY s.producer_id, s.fence
          LIMIT 1) after
), unwanted AS MATERIALIZED (
  SELECT a.producer_id, a.fence FROM attempt a
   WHERE (SELECT job.fence = a.fence AND job.state = 'RUNNING' FROM job WHERE job.id = a.producer_id)
         IS NOT TRUE
     AND (SELECT p.fence = a.fence FROM publication p WHERE p.producer_id = a.producer_id) IS NOT TRUE
)
DELETE FROM staged WHERE ctid = ANY (ARRAY(
  SELECT found.ctid
    FROM unwanted CROSS JOIN LATERAL (
         SELECT s.ctid FROM staged s
          WHERE s.producer_id = unwanted.producer_id AND s.fence = unwanted.fence
          ORDER BY s.producer_id, s.fence, s.seq
          LIMIT (SELECT :most::bigint)) found
   LIMIT :most))
