-- Steps pin every option of a job: how long its jobs may take in all, and until when they must start.
ALTER TABLE step ADD COLUMN deadline_us bigint;
ALTER TABLE step ADD COLUMN start_within_us bigint;
