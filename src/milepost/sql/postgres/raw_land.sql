-- What the source says of records; what is here already is replaced only by what is not older (H-83).
INSERT INTO raw (pipeline_id, key, version, hash, payload, root_id, seen, ordinal, fate)
SELECT :pipeline_id, i.key, i.version, i.hash, i.payload, :root_id::uuid, :seen::bigint, i.ordinal, 0
  FROM unnest(:key::text[], :version::bigint[], :hash::bytea[], :payload::bytea[],
              :ordinal::integer[]) AS i (key, version, hash, payload, ordinal)
ON CONFLICT (pipeline_id, key) DO UPDATE
  SET fate = CASE WHEN raw.version > excluded.version THEN 3
                  WHEN raw.hash = excluded.hash THEN 2 ELSE 1 END,
      version = greatest(raw.version, excluded.version),
      hash = CASE WHEN raw.version > excluded.version THEN raw.hash ELSE excluded.hash END,
      payload = CASE WHEN raw.version > excluded.version OR raw.hash = excluded.hash
                     THEN raw.payload ELSE excluded.payload END,
      root_id = excluded.root_id, seen = greatest(raw.seen, excluded.seen),
      ordinal = excluded.ordinal, removed_by = NULL, missing_in = NULL
RETURNING key, fate, CASE WHEN fate >= 2 THEN hash END
