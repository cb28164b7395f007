DELETE FROM worker
 WHERE state = 'STOPPED' AND heartbeat_at < {now} - :keep_us{micros}
   AND NOT EXISTS (SELECT 1 FROM job WHERE job.worker_id = worker.id AND job.state = 'RUNNING')
