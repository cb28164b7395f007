-- A run and the ones it resumes, the oldest first.
WITH RECURSIVE chain (id, resumes, depth) AS (
  SELECT id, resumes, 0 FROM run WHERE id = :id
  UNION ALL
  SELECT run.id, run.resumes, chain.depth + 1 FROM run JOIN chain ON run.id = chain.resumes
)
SELECT {text:id} FROM chain ORDER BY depth DESC
