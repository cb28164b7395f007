-- each
INSERT INTO page (root_id, ordinal, number, job_id, records, fresh, changed, unchanged, pending,
                  keys, at)
VALUES (:root_id, :ordinal, :number, :id, :records, :fresh, :changed, :unchanged, :pending, :keys,
        {now})
