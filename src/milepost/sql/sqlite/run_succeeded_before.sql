-- What succeeded, step by step, in the runs that a run resumes.
WITH RECURSIVE chain (id, resumes) AS (
  SELECT id, resumes FROM run WHERE id = :id
  UNION ALL
  SELECT run.id, run.resumes FROM run JOIN chain ON run.id = chain.resumes
)
SELECT c.step, sum(c.succeeded)
  FROM step_count c JOIN chain ON chain.id = c.run_id
 WHERE c.run_id <> :id
 GROUP BY c.step
