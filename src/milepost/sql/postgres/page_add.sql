INSERT INTO page (root_id, ordinal, number, job_id, records, fresh, changed, unchanged, pending,
                  keys, at)
SELECT i.root_id, i.ordinal, i.number, i.id, i.records, i.fresh, i.changed, i.unchanged, i.pending,
       i.keys, {now}
  FROM unnest(:root_id::uuid[], :ordinal::integer[], :number::integer[], :id::uuid[],
              :records::integer[], :fresh::integer[], :changed::integer[], :unchanged::integer[],
              :pending::integer[], :keys::text[])
       AS i (root_id, ordinal, number, id, records, fresh, changed, unchanged, pending, keys)
