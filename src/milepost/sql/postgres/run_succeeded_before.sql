-- What succeeded, step by step, in the runs that a run resumes.
WITH RECURSIVE chain (id, resumes) AS (
  SELECT id, resumes FROM run WHERE id = :id
  UNION ALL
  SELECT run.id, run.resumes FROM run JOIN chain ON run.id = chain.resumes
)
SELECT c.step, sum(c.succeeded)
  FROM step_count c
 WHERE c.run_id = ANY (ARRAY(SELECT id FROM chain WHERE id <> :id))
 GROUP BY c.step
