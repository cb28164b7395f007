-- Where the earliest thing begins that nobody has read; a beginning that is NULL counts as the first.
SELECT count(*), min(coalesce(reading.start_mark, -9223372036854775807))
  FROM reading JOIN pipeline_run AS p ON p.run_id = reading.root_id
 WHERE reading.pipeline_id = :pipeline_id AND closed_at IS NULL AND covered_by IS NULL
   AND p.mode IN ('full', 'incremental')
