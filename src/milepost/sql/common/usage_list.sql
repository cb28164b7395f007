SELECT name, sum(amount) FROM usage WHERE job_id = :id GROUP BY name ORDER BY name
