UPDATE step SET opened = true
  FROM unnest(:run_id::uuid[], :number::integer[]) AS t (run_id, number)
 WHERE step.run_id = t.run_id AND step.number = t.number
