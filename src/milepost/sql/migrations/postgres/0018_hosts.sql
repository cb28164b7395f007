-- Hosts that requests go to: who sends to one, and who waits for a place there. A row counts only where its job
-- is RUNNING with the same fence, so that nothing has to be given back: a place is free when its lease is over.
CREATE TABLE host_place (
  job_id uuid PRIMARY KEY,                   -- no reference: what is left behind counts for nothing, and is pruned
  host text NOT NULL,
  fence bigint NOT NULL,
  sends boolean NOT NULL,                    -- false: it waits for a place
  since timestamptz NOT NULL,
  due_at timestamptz                         -- when one that waits asks again
) WITH (fillfactor = 50);
CREATE INDEX host_place_sends ON host_place (host) WHERE sends;
CREATE INDEX host_place_waits ON host_place (host, since) WHERE NOT sends;

-- One after the other, for each host: who counts sees everything that was committed before it had the lock.
CREATE FUNCTION milepost_lock_hosts(hosts text[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  key integer;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION USING ERRCODE = 'MP003',
      MESSAGE = 'milepost: requests under a limit begin in READ COMMITTED: an older snapshot would not see '
                'the places that count';
  END IF;
  -- In one order everywhere, or two that share two hosts could wait for each other.
  FOR key IN SELECT DISTINCT hashtext(host) FROM unnest(hosts) AS host ORDER BY 1 LOOP
    PERFORM pg_advisory_xact_lock(hashtext('milepost hosts ' || current_schema()), key);
  END LOOP;
END $$;
