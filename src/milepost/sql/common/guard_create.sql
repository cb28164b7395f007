CREATE TABLE IF NOT EXISTS milepost_fence (
  job_id text NOT NULL PRIMARY KEY,
  fence bigint NOT NULL,
  at timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP
)
