-- Records what an operator says of everything that is marked and not decided so yet, run by run. A
-- change of mind is a second row: who decided first, and why, stays on the record.
INSERT INTO removal_decision (pipeline_id, root_id, decision, records, actor, reason, at)
SELECT raw.pipeline_id, raw.missing_in, :decision, count(*), :actor, :reason, {now}
  FROM raw
 WHERE raw.pipeline_id = :pipeline_id AND raw.missing_in IS NOT NULL
 GROUP BY raw.pipeline_id, raw.missing_in
ON CONFLICT (pipeline_id, root_id, decision) DO NOTHING
RETURNING records
