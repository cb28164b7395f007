-- What was kept under a fence that its job never had, or of a job that is gone (I2, I15).
SELECT DISTINCT {text:kept.job_id}, kept.what
  FROM (SELECT job_id, fence, 'step' AS what FROM durable_step
         UNION ALL
        SELECT job_id, fence, 'progress' FROM progress
         UNION ALL
        SELECT job_id, fence, 'output' FROM job_output) AS kept
 WHERE NOT EXISTS (SELECT 1 FROM job WHERE job.id = kept.job_id AND job.fence >= kept.fence)
