-- Limits: how many jobs run at once, and how many start in a time. Nothing is stored about a job that a limit
-- keeps waiting: whether it may start is told by the live leases under its key, and by the key's bucket.

-- One row a rule. `scope` says what is counted: jobs of a rule by their key, a queue, a host of requests, a source.
-- What programs declared stands next to what is in force: people may set something else at runtime.
CREATE TABLE limit_rule (
  scope text NOT NULL CHECK (scope IN ('job', 'queue', 'host', 'source')),
  name text NOT NULL,
  most integer CHECK (most >= 0),            -- so many at once; NULL: any number
  rate double precision CHECK (rate > 0),    -- so many units in `per_us`; NULL: any number
  per_us bigint CHECK (per_us > 0),
  burst double precision CHECK (burst > 0),  -- so many at once after a rest
  ordered boolean NOT NULL DEFAULT false,    -- one at a time, in order, retries included
  units text,                                -- what an attempt counts that is settled against its reservation
  declared text,                             -- JSON: the newest declaration
  declared_at timestamptz,
  declared_before text,                      -- JSON: the one that it took the place of
  set_at timestamptz,                        -- when somebody set it otherwise
  set_by text,
  reason text,
  since bigint NOT NULL DEFAULT nextval('queued_seq'),  -- leases with a smaller number may be of a queue without it
  PRIMARY KEY (scope, name),
  CHECK ((rate IS NULL) = (per_us IS NULL) AND (rate IS NULL) = (burst IS NULL))
);

-- When the next unit of a key is free, as GCRA has it: ahead of now by what was taken and not yet earned.
CREATE TABLE bucket (
  scope text NOT NULL,
  key text COLLATE "C" NOT NULL,
  free_at timestamptz NOT NULL,
  PRIMARY KEY (scope, key)
) WITH (fillfactor = 50);
CREATE INDEX bucket_free ON bucket (free_at);

-- Who changed a rule, to what, and why.
CREATE TABLE limit_change (
  n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at timestamptz NOT NULL DEFAULT milepost_now(),
  scope text NOT NULL,
  name text NOT NULL,
  before text,                               -- JSON: what was in force
  after text,
  key text,                                -- whose bucket was cleared, which is no change of the rule
  free_at timestamptz,                       -- when that would have been full again
  actor text,
  reason text,
  db_user text NOT NULL DEFAULT session_user
);
CREATE TRIGGER limit_change_refuse BEFORE UPDATE OR DELETE ON limit_change FOR EACH ROW
  EXECUTE FUNCTION milepost_refuse_hand();
CREATE TRIGGER limit_change_refuse_truncate BEFORE TRUNCATE ON limit_change FOR EACH STATEMENT
  EXECUTE FUNCTION milepost_refuse_hand();

-- Keys are spread over sixteen stripes; a claim takes jobs of those stripes alone that it locks, and nobody waits
-- for a stripe. The schema's name keeps apart the stores of one database.
CREATE FUNCTION milepost_lock_stripes(first integer, most integer) RETURNS text[]
  LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  store integer := hashtext('milepost limits ' || current_schema());
  locked text[] := '{}';
  stripe integer;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION USING ERRCODE = 'MP003',
      MESSAGE = 'milepost: jobs under a limit are claimed in READ COMMITTED: an older snapshot would '
                'not see the leases that count';
  END IF;
  FOR place IN 0..15 LOOP
    EXIT WHEN cardinality(locked) >= most;
    stripe := (first + place) % 16;
    IF pg_try_advisory_xact_lock(store, stripe) THEN
      locked := locked || to_hex(stripe);
    END IF;
  END LOOP;
  RETURN locked;
END $$;

CREATE FUNCTION milepost_lock_queue(name text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RETURN pg_try_advisory_xact_lock(hashtext('milepost limits ' || current_schema()),
                                   16 + (hashtext(name) & 1073741823));
END $$;

-- Names the rule of a key, as milepost.limit.split_key does: `stripe/rule/key`.
CREATE FUNCTION milepost_rule_of(limit_key text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT replace(replace(split_part(limit_key, '/', 2), '%2F', '/'), '%25', '%')
$$;

CREATE FUNCTION milepost_us_since(began timestamptz) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RETURN (date_part('epoch', clock_timestamp() - began) * 1000000)::bigint;
END $$;

-- Tells where the first job under a limit stands in its line, from a number on.
CREATE FUNCTION milepost_first_limited(asked_queue text, asked_priority smallint, bottom bigint) RETURNS bigint
  LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (SELECT queued_seq FROM job
           WHERE job.queue = asked_queue AND job.priority = asked_priority
             AND job.state = 'QUEUED' AND coalesce(job.limit_key, '') <> '' AND job.queued_seq >= bottom
           ORDER BY queued_seq LIMIT 1);
END $$;

-- Finds jobs under limits, of stripes that are locked: the first in line; and the first of some keys, namely those
-- that were freed, those of the newest jobs, and so many that follow a place in the order of keys. Behind an old
-- snapshot indexes keep dead entries alive: in line they are passed by floors, under keys by bottoms, below which
-- nothing waited when that was last looked at. A row without a place comes last: the last of those keys if there may
-- be more (of the line that got least far: no line's keys are left out), how many were visited, of lines without a
-- floor where the first job stands, and where the last one in line stands that was looked at. A line that the look did
-- not come to is asked for its first job from the very bottom: one may have come in below the last one.
-- What is asked of a job is what job_claim asks (a test compares the words). Its plan may be made while the table is
-- small, and must serve a large one: rows come in the order of their indexes.
CREATE FUNCTION milepost_find_limited(
    locked text[], asked_queues text[], asked_priorities smallint[], asked_floors bigint[], asked_bottoms bigint[],
    asked_kinds text[], asked_alone boolean, asked_front bigint, asked_visits bigint, asked_after text, asked_newest bigint,
    asked_quantum bigint, asked_freed json)
  RETURNS TABLE (place tid, line bigint, queue text, priority smallint, key text, seq bigint, units double precision)
  LANGUAGE plpgsql VOLATILE ROWS 500
  SET plan_cache_mode = force_generic_plan SET jit = off
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  WITH RECURSIVE line AS MATERIALIZED (
    SELECT l.queue, l.priority, l.floor, l.bottom, l.place
      FROM unnest(asked_queues, asked_priorities, asked_floors, asked_bottoms)
           WITH ORDINALITY AS l (queue, priority, floor, bottom, place)
  ), hop (place, queue, priority, bottom, key, n, more) AS (
    SELECT line.place, line.queue, line.priority, line.bottom, asked_after COLLATE "C", 0, true
      FROM line
     WHERE asked_visits > 0
     UNION ALL
    -- A stripe that is another's is left by its first key, for the next one of ours.
    SELECT hop.place, hop.queue, hop.priority, hop.bottom,
           CASE WHEN next.ours OR next.key IS NULL THEN next.key
                ELSE coalesce((SELECT min(s) FROM unnest(locked) AS s
                                WHERE s COLLATE "C" > left(next.key, 1)), 'z') || '/' END,
           hop.n + CASE WHEN next.ours THEN 1 ELSE 0 END, next.ours
      FROM hop
     CROSS JOIN LATERAL (
           SELECT (SELECT limit_key FROM job
                    WHERE job.queue = hop.queue AND job.priority = hop.priority AND job.state = 'QUEUED'
                      AND job.limit_key > hop.key AND job.queued_seq >= hop.bottom
                    ORDER BY limit_key LIMIT 1) AS key OFFSET 0) AS found
     CROSS JOIN LATERAL (
           SELECT found.key, coalesce(left(found.key, 1) = ANY (locked), false) AS ours
           OFFSET 0) AS next
     WHERE hop.key IS NOT NULL AND hop.n < asked_visits
  ), front AS MATERIALIZED (
    SELECT found.place, line.place AS line, found.queue, found.priority, found.key, found.seq, found.units
      FROM line CROSS JOIN LATERAL (
           SELECT job.ctid AS place, job.queue, job.priority, limit_key AS key, queued_seq AS seq, units
             FROM job
            WHERE job.queue = line.queue AND job.priority = line.priority
              AND job.state = 'QUEUED' AND coalesce(job.limit_key, '') <> '' AND job.queued_seq >= line.floor
              AND left(job.limit_key, 1) = ANY (locked)
              AND (asked_kinds IS NULL OR kind || ' ' || kind_version = ANY(asked_kinds))
              AND (losses - coalesce(recoveries, retries - errors) > 0 OR errors - retries > 0) IS NOT TRUE
              AND (losses - poison_limit >= -1 OR (losses > 0 AND losses - coalesce(recoveries, retries - errors) >= 0)) = asked_alone
              AND (run_id IS NULL
                   OR (SELECT run.state FROM run WHERE run.id = job.run_id)
                      IN ('CREATED', 'QUEUED', 'RUNNING', 'FINALIZING'))
            ORDER BY queued_seq
            LIMIT (SELECT asked_front)) found
     LIMIT asked_front
  ), newest AS MATERIALIZED (
    SELECT DISTINCT line.place AS line, line.queue, line.priority, found.key
      FROM line CROSS JOIN LATERAL (
           SELECT limit_key AS key FROM job
            WHERE job.queue = line.queue AND job.priority = line.priority
              AND job.state = 'QUEUED' AND coalesce(job.limit_key, '') <> ''
              AND job.queued_seq >= greatest(line.floor, line.bottom)
            ORDER BY queued_seq DESC
            LIMIT (SELECT asked_newest)) found
     WHERE left(found.key, 1) = ANY (locked)
  ), visited AS MATERIALIZED (
    SELECT place AS line, queue, priority, key FROM hop WHERE more AND n > 0 AND key IS NOT NULL
     UNION
    SELECT line, queue, priority, key FROM newest
     UNION
    SELECT line.place, line.queue, line.priority, freed.told ->> 0
      FROM json_array_elements(asked_freed) AS freed (told)
      JOIN line ON line.queue = freed.told ->> 1 AND line.priority = (freed.told ->> 2)::smallint
     WHERE left(freed.told ->> 0, 1) = ANY (locked)
     UNION
    -- The first job of a key may need more units than its bucket has: those that stand behind it must not take them.
    SELECT front.line, front.queue, front.priority, front.key
      FROM limit_rule AS rule JOIN front ON milepost_rule_of(front.key) = rule.name
     WHERE rule.scope = 'job' AND rule.rate IS NOT NULL
  ), met AS MATERIALIZED (
    SELECT front.line, min(front.seq) AS first, max(front.seq) AS last FROM front GROUP BY front.line
  ), passed AS MATERIALIZED (
    SELECT line.place AS line, line.floor, line.bottom, met.last AS seq
      FROM line LEFT JOIN met ON met.line = line.place
  ), heads AS MATERIALIZED (
    SELECT found.place, visited.line, found.queue, found.priority, found.key, found.seq, found.units
      FROM visited JOIN passed ON passed.line = visited.line
     CROSS JOIN LATERAL (
           SELECT * FROM (
             SELECT job.ctid AS place, job.queue, job.priority, limit_key AS key, queued_seq AS seq, units,
                    kind, kind_version, errors, losses, retries, recoveries, poison_limit, run_id
               FROM job
              WHERE job.queue = visited.queue AND job.priority = visited.priority
                AND job.state = 'QUEUED' AND job.limit_key = visited.key AND job.queued_seq >= passed.bottom
              ORDER BY limit_key, queued_seq
              LIMIT greatest(64, asked_quantum)) AS first
            WHERE true
              AND (asked_kinds IS NULL OR kind || ' ' || kind_version = ANY(asked_kinds))
              AND (losses - coalesce(recoveries, retries - errors) > 0 OR errors - retries > 0) IS NOT TRUE
              AND (losses - poison_limit >= -1 OR (losses > 0 AND losses - coalesce(recoveries, retries - errors) >= 0)) = asked_alone
              AND (run_id IS NULL
                   OR (SELECT run.state FROM run WHERE run.id = first.run_id)
                      IN ('CREATED', 'QUEUED', 'RUNNING', 'FINALIZING'))
            LIMIT asked_quantum) found
     -- The front has all between its first and its last already.
     WHERE passed.seq IS NULL OR found.seq > passed.seq OR found.seq < passed.floor
  )
  SELECT front.place, front.line, front.queue, front.priority, front.key, front.seq, front.units FROM front
   UNION ALL
  SELECT heads.place, heads.line, heads.queue, heads.priority, heads.key, heads.seq, heads.units FROM heads
   UNION ALL
  SELECT NULL, (SELECT count(*) FROM front),
         json_build_array(
           (SELECT json_agg(json_build_array(line.queue, line.priority, least(
                     met.first, milepost_first_limited(line.queue, line.priority,
                       CASE WHEN met.first IS NULL AND (SELECT count(*) FROM front) >= asked_front THEN 0 ELSE line.bottom END))))
              FROM line LEFT JOIN met ON met.line = line.place WHERE line.floor = 0),
           (SELECT json_build_array(line.queue, line.priority, met.last, 0)
              FROM line JOIN met ON met.line = line.place
             WHERE line.place = (SELECT max(met.line) FROM met)))::text, NULL,
         (SELECT min(key) FROM hop WHERE more AND n = asked_visits),
         (SELECT count(*) FROM visited), NULL;
END $$;

-- Chooses, of the jobs under limits, those that may start now. It waits for nobody, and writes nothing: the claim that
-- asks locks their rows and moves them, in the same transaction, and until that has committed nobody else can add a
-- lease under the keys of the stripes that are locked here. Leases are counted by a later statement than the one that
-- locks: it sees all that was committed before. One plan serves all calls: to plan it takes longer than to run it.
-- Behind an old snapshot leases that have ended stay in their indexes. Whoever names `asked_leases` has its own leases
-- numbered, is told for each key and each queue that was counted from which number on live ones stand, and gives that
-- the next time: claims to come draw larger ones. It is told 0 where none lives: any number that it has drawn before
-- will do, because its claim is committed, and a server that crashes goes on behind it. Those under keys that have
-- no number are counted one by one. Leases of a queue with a limit are always numbered; no number is told while there
-- are others, from before it had one.
CREATE FUNCTION milepost_choose_limited(
    first_stripe integer, most_stripes integer, asked_queues text[], asked_priorities smallint[],
    asked_floors bigint[], asked_bottoms bigint[], asked_kinds text[], asked_alone boolean, asked_front bigint, asked_visits bigint,
    asked_after text, asked_newest bigint, asked_quantum bigint, asked_freed json, asked_leases json, asked_ids uuid[],
    asked_most bigint)
  RETURNS TABLE (places tid[], look text, served text[]) LANGUAGE plpgsql VOLATILE ROWS 1
  SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
  began timestamptz := clock_timestamp();
  locked text[] := milepost_lock_stripes(first_stripe, most_stripes);
  usable text[];
  limited text[];
  others boolean := false;  -- whether another claim has a queue with a limit of its own
  chosen tid[];
  told text;
BEGIN
  SELECT coalesce(array_agg(q.queue), '{}'), coalesce(array_agg(q.queue) FILTER (WHERE q.limited), '{}')
    INTO usable, limited
    FROM (SELECT l.queue, rule.name IS NOT NULL AS limited
            FROM (SELECT DISTINCT unnest(asked_queues) AS queue) AS l
            LEFT JOIN limit_rule AS rule ON rule.scope = 'queue' AND rule.name = l.queue
           WHERE (SELECT paused FROM queue WHERE queue.name = l.queue) IS NOT TRUE
             AND CASE WHEN rule.name IS NULL THEN true ELSE milepost_lock_queue(l.queue) END) AS q;
  IF cardinality(usable) < (SELECT count(DISTINCT q) FROM unnest(asked_queues) AS q) THEN
    others := EXISTS (SELECT 1 FROM limit_rule AS rule
                       WHERE rule.scope = 'queue' AND rule.name = ANY (asked_queues) AND rule.name <> ALL (usable)
                         AND (SELECT paused FROM queue WHERE queue.name = rule.name) IS NOT TRUE);
    SELECT coalesce(array_agg(l.queue ORDER BY l.place), '{}'), coalesce(array_agg(l.priority ORDER BY l.place), '{}'),
           coalesce(array_agg(l.floor ORDER BY l.place), '{}'), coalesce(array_agg(l.bottom ORDER BY l.place), '{}')
      INTO asked_queues, asked_priorities, asked_floors, asked_bottoms
      FROM unnest(asked_queues, asked_priorities, asked_floors, asked_bottoms)
           WITH ORDINALITY AS l (queue, priority, floor, bottom, place)
     WHERE l.queue = ANY (usable);
  END IF;

  -- Most claims: nothing but numbers of leases is asked for, and there is room for all that is found. Only jobs of keys
  -- that have more than their rule allows are ranked. Not worth a try where the caller looks at little of the front, or
  -- only at the first of each key: then most are blocked. What is asked of a job is what job_claim asks.
  IF asked_ids IS NULL AND asked_leases IS NULL AND limited = '{}'
     AND (asked_front BETWEEN asked_most / 2 AND asked_most OR (asked_front = 0 AND asked_quantum > 1))
     AND NOT EXISTS (SELECT 1 FROM limit_rule WHERE scope = 'job' AND (ordered OR rate IS NOT NULL)) THEN
    WITH line AS MATERIALIZED (
      SELECT l.queue, l.priority, l.floor, l.bottom, l.place
        FROM unnest(asked_queues, asked_priorities, asked_floors, asked_bottoms)
             WITH ORDINALITY AS l (queue, priority, floor, bottom, place)
       ORDER BY l.place
    ), front AS MATERIALIZED (
      SELECT found.place, found.key, found.seq, line.place AS line
        FROM line CROSS JOIN LATERAL (
             SELECT job.ctid AS place, limit_key AS key, queued_seq AS seq
               FROM job
              WHERE job.queue = line.queue AND job.priority = line.priority
                AND job.state = 'QUEUED' AND coalesce(job.limit_key, '') <> '' AND job.queued_seq >= line.floor
                AND left(job.limit_key, 1) = ANY (locked)
                AND (asked_kinds IS NULL OR kind || ' ' || kind_version = ANY(asked_kinds))
                AND (losses - coalesce(recoveries, retries - errors) > 0 OR errors - retries > 0) IS NOT TRUE
                AND (losses - poison_limit >= -1 OR (losses > 0 AND losses - coalesce(recoveries, retries - errors) >= 0)) = asked_alone
                AND (run_id IS NULL
                     OR (SELECT run.state FROM run WHERE run.id = job.run_id)
                        IN ('CREATED', 'QUEUED', 'RUNNING', 'FINALIZING'))
              ORDER BY queued_seq
              LIMIT (SELECT asked_front)
                FOR UPDATE OF job SKIP LOCKED) found
       LIMIT asked_front
    ), met AS MATERIALIZED (
      SELECT front.line, min(front.seq) AS first, max(front.seq) AS last FROM front GROUP BY front.line
    ), seen AS MATERIALIZED (
      SELECT place, key, seq FROM milepost_find_limited(
        locked, asked_queues, asked_priorities, asked_floors, asked_bottoms, asked_kinds, asked_alone, 0,
        asked_visits, asked_after, asked_newest, asked_quantum, asked_freed)
       WHERE asked_visits > 0 OR asked_newest > 0 OR json_array_length(asked_freed) > 0
    ), heads AS MATERIALIZED (
      SELECT job.ctid AS place, job.limit_key AS key, job.queued_seq AS seq,
             (SELECT line.place FROM line WHERE line.queue = job.queue AND line.priority = job.priority) AS line
        FROM job
       WHERE job.ctid = ANY (ARRAY(SELECT place FROM seen
                                    WHERE place IS NOT NULL AND place NOT IN (SELECT place FROM front))::tid[])
         AND job.state || '' = 'QUEUED'
         FOR UPDATE SKIP LOCKED
    ), found AS MATERIALIZED (
      SELECT place, key, line, seq FROM front UNION ALL SELECT place, key, line, seq FROM heads
    ), least AS MATERIALIZED (
      SELECT min(most) AS most FROM limit_rule WHERE scope = 'job'
    ), counted AS MATERIALIZED (
      -- Found and live together, of keys that may have more than the least of all rules allows.
      SELECT key, count(*) - count(place) AS live, count(place) AS wanted
        FROM (SELECT key, place FROM found
               UNION ALL
              SELECT limit_key, NULL FROM job
               WHERE limit_key = ANY (ARRAY(SELECT key FROM found)) AND worker_id IS NOT NULL
                 AND (SELECT most FROM least) IS NOT NULL) AS each (key, place)
       GROUP BY key
      HAVING count(*) > (SELECT most FROM least)
    ), over AS MATERIALIZED (
      SELECT counted.key, rule.most - counted.live AS room
        FROM counted JOIN limit_rule AS rule ON rule.scope = 'job' AND rule.name = milepost_rule_of(counted.key)
       WHERE counted.live + counted.wanted > rule.most
    ), blocked AS MATERIALIZED (
      SELECT ranked.place
        FROM (SELECT found.place, over.room, row_number() OVER (PARTITION BY found.key ORDER BY found.line, found.seq) AS turn
                FROM over JOIN found ON found.key = over.key) AS ranked
       WHERE ranked.turn > ranked.room
    )
    SELECT CASE WHEN EXISTS (SELECT 1 FROM blocked)
                THEN ARRAY(SELECT place FROM found EXCEPT SELECT place FROM blocked)
                ELSE ARRAY(SELECT place FROM found) END,
           json_build_array(cardinality(locked), (SELECT count(*) FROM front), (SELECT count(*) FROM blocked),
                            coalesce((SELECT seq FROM seen WHERE place IS NULL), 0),
                            (SELECT key FROM seen WHERE place IS NULL), NULL, NULL,
                            (SELECT json_agg(json_build_array(line.queue, line.priority, least(
                                      met.first, milepost_first_limited(line.queue, line.priority,
                                        CASE WHEN met.first IS NULL AND (SELECT count(*) FROM front) >= asked_front
                                             THEN 0 ELSE line.bottom END))))
                               FROM line LEFT JOIN met ON met.line = line.place
                              WHERE line.floor = 0),
                            milepost_us_since(began),
                            (SELECT json_build_array(line.queue, line.priority, met.last, 0)
                               FROM line JOIN met ON met.line = line.place
                              WHERE line.place = (SELECT max(met.line) FROM met)), others)::text
      INTO chosen, told
     WHERE (SELECT count(*) FROM found) <= asked_most;
    IF chosen IS NOT NULL THEN
      places := chosen;
      look := told;
      served := limited;
      RETURN NEXT;
      RETURN;
    END IF;
  END IF;

  WITH clock_now AS MATERIALIZED (
    SELECT milepost_now() AS now
  ), rule AS MATERIALIZED (
    SELECT scope, name, most, ordered, burst, since, per_us / rate AS unit_us FROM limit_rule
     WHERE scope = 'job' OR scope = 'queue'
  ), line AS MATERIALIZED (
    SELECT l.queue, l.priority, l.floor, l.place
      FROM unnest(asked_queues, asked_priorities, asked_floors)
           WITH ORDINALITY AS l (queue, priority, floor, place)
  ), seen AS MATERIALIZED (
    SELECT * FROM milepost_find_limited(
      locked, asked_queues, asked_priorities, asked_floors, asked_bottoms, asked_kinds, asked_alone, asked_front,
      asked_visits, asked_after, asked_newest, asked_quantum, asked_freed)
  ), plain AS MATERIALIZED (
    SELECT found.place, line.place AS line, found.queue, found.priority, NULL::text AS key, found.seq, found.units
      FROM line CROSS JOIN LATERAL (
           SELECT job.ctid AS place, job.queue, job.priority, queued_seq AS seq, units
             FROM job
            WHERE job.queue = line.queue AND job.priority = line.priority
              AND job.state = 'QUEUED' AND job.limit_key IS NULL AND job.queued_seq >= line.floor
              AND (asked_kinds IS NULL OR kind || ' ' || kind_version = ANY(asked_kinds))
              AND (losses - coalesce(recoveries, retries - errors) > 0 OR errors - retries > 0) IS NOT TRUE
              AND (losses - poison_limit >= -1 OR (losses > 0 AND losses - coalesce(recoveries, retries - errors) >= 0)) = asked_alone
              AND (run_id IS NULL
                   OR (SELECT run.state FROM run WHERE run.id = job.run_id)
                      IN ('CREATED', 'QUEUED', 'RUNNING', 'FINALIZING'))
            ORDER BY limit_key, queued_seq
            LIMIT (SELECT CASE WHEN asked_ids IS NULL THEN asked_most ELSE 0 END)) found
     WHERE line.queue = ANY (limited)
  ), named AS MATERIALIZED (
    SELECT job.ctid AS place, line.place AS line, job.queue, job.priority, limit_key AS key, queued_seq AS seq, units
      FROM job JOIN line ON line.queue = job.queue AND line.priority = job.priority
     WHERE job.id = ANY (ARRAY(SELECT unnest(asked_ids)))
       AND CASE WHEN job.state = 'QUEUED' THEN true ELSE false END
       AND (job.limit_key IS NULL OR left(job.limit_key, 1) = ANY (locked))
       AND (asked_kinds IS NULL OR kind || ' ' || kind_version = ANY(asked_kinds))
       AND (losses - coalesce(recoveries, retries - errors) > 0 OR errors - retries > 0) IS NOT TRUE
       AND (losses - poison_limit >= -1 OR (losses > 0 AND losses - coalesce(recoveries, retries - errors) >= 0)) = asked_alone
       AND (run_id IS NULL
            OR (SELECT run.state FROM run WHERE run.id = job.run_id)
               IN ('CREATED', 'QUEUED', 'RUNNING', 'FINALIZING'))
  ), found AS MATERIALIZED (
    SELECT place, line, queue, priority, key, seq, units FROM seen WHERE place IS NOT NULL
     UNION ALL
    SELECT place, line, queue, priority, key, seq, units FROM plain
     UNION ALL
    SELECT place, line, queue, priority, key, seq, units FROM named
  ), known AS MATERIALIZED (
    SELECT told ->> 0 AS scope, (told ->> 1) COLLATE "C" AS key, (told ->> 2)::bigint AS floor
      FROM json_array_elements(asked_leases) AS each (told)
  ), keyed AS MATERIALIZED (
    -- Those that no rule counts have their turns by their leases, if not all that was found can be taken.
    SELECT keys.key, keys.queue, keys.priority, rule.most, coalesce(rule.ordered, false) AS ordered, rule.unit_us, rule.burst,
           known.floor, rule.most IS NOT NULL OR rule.ordered IS TRUE OR limited <> '{}'
           OR (SELECT count(*) FROM found) > asked_most AS is_counted,
           CASE WHEN asked_visits > asked_most THEN random() ELSE 0.5 END AS chance
      FROM (SELECT DISTINCT ON (key) key, queue, priority FROM found WHERE key IS NOT NULL ORDER BY key, line, seq) AS keys
      LEFT JOIN rule ON rule.scope = 'job' AND rule.name = milepost_rule_of(keys.key)
      LEFT JOIN known ON known.scope = 'job' AND known.key = keys.key
  ), counted AS MATERIALIZED (
    SELECT limit_key AS key, count(*) AS live, min(lease_seq) AS first FROM job
     WHERE limit_key = ANY (ARRAY(SELECT key FROM keyed WHERE is_counted AND floor IS NULL)) AND worker_id IS NOT NULL
     GROUP BY limit_key
     UNION ALL
    SELECT keyed.key, count(*), min(leased.lease_seq)
      FROM keyed CROSS JOIN LATERAL (
           SELECT job.lease_seq FROM job
            WHERE job.limit_key = keyed.key AND job.lease_seq >= keyed.floor AND job.worker_id IS NOT NULL
            UNION ALL
           SELECT job.lease_seq FROM job
            WHERE job.limit_key = keyed.key AND job.lease_seq IS NULL AND job.worker_id IS NOT NULL) AS leased
     WHERE keyed.is_counted AND keyed.floor IS NOT NULL
     GROUP BY keyed.key
  ), turns AS MATERIALIZED (
    -- Of an ordered key, the first in the first of its lines; none while one is between two attempts, or while one
    -- that was before it is still to be handed to a broker.
    SELECT keyed.key,
           (SELECT first.seq
              FROM (SELECT job.queued_seq AS seq FROM job
                     WHERE job.queue = keyed.queue AND job.priority = keyed.priority
                       AND job.limit_key = keyed.key AND job.state = 'QUEUED'
                     ORDER BY job.limit_key, job.queued_seq
                     LIMIT 1) AS first
             WHERE NOT EXISTS (SELECT 1 FROM job
                                WHERE job.queue = keyed.queue AND job.priority = keyed.priority
                                  AND job.state = 'READY' AND job.queued_seq < first.seq
                                  AND job.limit_key = keyed.key)) AS seq
      FROM keyed
     WHERE keyed.ordered
       AND NOT EXISTS (SELECT 1 FROM job
                        WHERE job.limit_key = keyed.key AND job.fence > 0
                          AND job.state IN ('WAITING', 'RETRYING'))
  ), live AS MATERIALIZED (
    SELECT keyed.key, turns.seq AS turn, keyed.unit_us, keyed.ordered, keyed.chance, coalesce(counted.live, 0) AS leased,
           CASE WHEN keyed.ordered THEN 1 ELSE keyed.most END - coalesce(counted.live, 0) AS room,
           keyed.burst * keyed.unit_us
           - greatest(0, (extract(epoch FROM bucket.free_at - (SELECT now FROM clock_now)) * 1000000)::double precision) AS left_us,
           coalesce(bucket.free_at <= (SELECT now FROM clock_now), true) AS rested
      FROM keyed
      LEFT JOIN counted ON counted.key = keyed.key
      LEFT JOIN turns ON turns.key = keyed.key
      LEFT JOIN bucket ON bucket.scope = 'job' AND bucket.key = keyed.key AND keyed.unit_us IS NOT NULL
  ), busy AS MATERIALIZED (
    SELECT rule.name AS queue, rule.unit_us, rule.most - leased.live AS room, leased.live, leased.numbered, leased.first,
           rule.burst * rule.unit_us
           - greatest(0, (extract(epoch FROM bucket.free_at - (SELECT now FROM clock_now)) * 1000000)::double precision) AS left_us
      FROM rule
      LEFT JOIN known ON known.scope = 'queue' AND known.key = rule.name AND known.floor >= rule.since
      LEFT JOIN bucket ON bucket.scope = 'queue' AND bucket.key = rule.name AND rule.unit_us IS NOT NULL
     CROSS JOIN LATERAL (
           SELECT count(*) AS live, count(lease.lease_seq) AS numbered, min(lease.lease_seq) AS first
             FROM (SELECT CASE WHEN job.served THEN job.lease_seq END AS lease_seq FROM job
                    WHERE known.floor IS NULL AND job.state = 'RUNNING' AND job.queue = rule.name
                    UNION ALL
                   SELECT job.lease_seq FROM job
                    WHERE job.queue = rule.name AND job.lease_seq >= known.floor AND job.worker_id IS NOT NULL
                      AND job.served) AS lease) AS leased
     WHERE rule.scope = 'queue' AND rule.name = ANY (limited)
  ), ranked AS MATERIALIZED (
    -- A job of a queue that lets none start takes no place of its key from those of other queues.
    SELECT each.*,
           CASE WHEN each.key IS NULL THEN 1
                ELSE count(*) FILTER (WHERE each.counts) OVER line + CASE WHEN each.counts THEN 0 ELSE 1 END END AS turn,
           CASE WHEN each.key IS NOT NULL
                THEN coalesce(sum(coalesce(each.units, 1)) FILTER (WHERE each.counts) OVER line, 0)
                     + CASE WHEN each.counts THEN 0 ELSE coalesce(each.units, 1) END END AS taken
      FROM (SELECT found.*, found.queue <> ALL (ARRAY(
                     SELECT busy.queue FROM busy WHERE busy.room <= 0 OR busy.unit_us > busy.left_us + 0.5)) AS counts
              FROM found) AS each
    WINDOW line AS (PARTITION BY each.key ORDER BY each.line, each.seq ROWS UNBOUNDED PRECEDING)
  ), judged AS MATERIALIZED (
    SELECT ranked.*, live.left_us, live.unit_us, live.rested, live.leased, live.chance,
           (live.room IS NULL OR ranked.turn <= live.room)
           AND (live.ordered IS NOT TRUE OR coalesce(ranked.seq = live.turn, false)) AS free,
           live.unit_us IS NULL OR ranked.taken * live.unit_us <= live.left_us + 0.5
           OR (ranked.turn = 1 AND live.rested) AS earned
      FROM ranked LEFT JOIN live ON live.key = ranked.key
  ), ready AS MATERIALIZED (
    -- A key's turns begin after its live leases; jobs without a key come with the first turn of a key in their line.
    SELECT judged.place, judged.line, judged.seq, judged.queue, judged.key, judged.chance,
           coalesce(judged.turn + judged.leased,
                    min(judged.turn + judged.leased) OVER (PARTITION BY judged.line), 1) AS turn
      FROM judged WHERE judged.free AND judged.earned
  ), oldest AS MATERIALIZED (
    -- Where a look goes by keys, and they have the same turn: a line's floor is where the last claim took a job. If
    -- that was no younger than the oldest job now, the oldest one's key is the last; else it is the first, once in as
    -- many times as there are other keys. Those come by age; by chance where more are visited than can be taken,
    -- because then the walk does not bring each of them forward.
    SELECT each.line, each.key,
           CASE WHEN line.floor < each.seq OR random() * (each.keys - 1) >= 1 THEN 2 ELSE -1 END AS tie
      FROM (SELECT ready.line, (array_agg(ready.key ORDER BY ready.seq))[1] AS key, min(ready.seq) AS seq,
                   count(DISTINCT coalesce(ready.key, '')) AS keys
              FROM ready
             WHERE asked_visits > 0
             GROUP BY ready.line) AS each
      JOIN line ON line.place = each.line
  ), queueing AS MATERIALIZED (
    SELECT tied.place, tied.line, tied.turn, tied.tie, tied.seq, tied.queue,
           row_number() OVER (PARTITION BY tied.queue ORDER BY tied.line, tied.turn, tied.tie, tied.seq) AS rank
      FROM (SELECT ready.*,
                   CASE WHEN oldest.line IS NULL THEN 0
                        WHEN ready.key IS NOT DISTINCT FROM oldest.key THEN oldest.tie
                        ELSE coalesce(ready.chance, 0.5) END AS tie
              FROM ready LEFT JOIN oldest ON oldest.line = ready.line) AS tied
  ), chosen AS MATERIALIZED (
    SELECT queueing.place FROM queueing LEFT JOIN busy ON busy.queue = queueing.queue
     WHERE (busy.room IS NULL OR queueing.rank <= busy.room)
       AND (busy.unit_us IS NULL OR queueing.rank * busy.unit_us <= busy.left_us + 0.5)
     ORDER BY queueing.line, queueing.turn, queueing.tie, queueing.seq
     LIMIT asked_most
  ), told AS MATERIALIZED (
    SELECT json_build_array(
             cardinality(locked),
             (SELECT line FROM seen WHERE place IS NULL),
             (SELECT count(*) FROM judged WHERE NOT (free AND earned))
             + (SELECT count(*) FROM queueing JOIN busy ON busy.queue = queueing.queue
                 WHERE queueing.rank > busy.room OR queueing.rank * busy.unit_us > busy.left_us + 0.5),
             (SELECT seq FROM seen WHERE place IS NULL),
             (SELECT key FROM seen WHERE place IS NULL),
             -- Where a queue is full, only the end of a job lets the next one go.
             (SELECT min(judged.taken * judged.unit_us - judged.left_us)
                FROM judged LEFT JOIN busy ON busy.queue = judged.queue
               WHERE judged.free AND NOT judged.earned AND coalesce(busy.room, 1) > 0),
             (SELECT min(queueing.rank * busy.unit_us - busy.left_us)
                FROM queueing JOIN busy ON busy.queue = queueing.queue
               WHERE queueing.rank * busy.unit_us > busy.left_us + 0.5
                 AND queueing.rank <= coalesce(busy.room, queueing.rank)),
             (SELECT queue::json -> 0 FROM seen WHERE place IS NULL),
             milepost_us_since(began),
             (SELECT queue::json -> 1 FROM seen WHERE place IS NULL),
             others,
             (SELECT json_agg(json_build_array(each.scope, each.key,
                       CASE WHEN each.is_known THEN coalesce(each.first, 0) END))
                FROM (SELECT 'job' AS scope, keyed.key, true AS is_known, counted.first
                        FROM keyed LEFT JOIN counted ON counted.key = keyed.key
                       WHERE keyed.is_counted
                       UNION ALL
                      SELECT 'queue', busy.queue, busy.live = busy.numbered, busy.first FROM busy) AS each
               WHERE asked_leases IS NOT NULL)
           )::text AS look
  )
  SELECT ARRAY(SELECT job.ctid FROM job
                WHERE job.ctid = ANY (ARRAY(SELECT chosen.place FROM chosen)) AND job.state || '' = 'QUEUED'
                  FOR UPDATE SKIP LOCKED),
         told.look, limited
    INTO places, look, served
    FROM told;
  RETURN NEXT;
END $$;
