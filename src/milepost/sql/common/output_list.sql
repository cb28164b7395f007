-- A page of what a job gave, if it SUCCEEDED; what other attempts of it left does not count.
SELECT seq, payload FROM job_output
 WHERE job_id = :id
   AND fence = (SELECT fence FROM job WHERE job.id = :id AND job.state = 'SUCCEEDED')
   AND seq > :after
 ORDER BY seq
 LIMIT :most
