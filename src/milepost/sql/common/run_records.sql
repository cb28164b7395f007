-- What a root has read, as its pages say.
SELECT count(*), coalesce(sum(records), 0), coalesce(sum(fresh), 0), coalesce(sum(changed), 0),
       coalesce(sum(unchanged), 0), coalesce(sum(pending), 0)
  FROM page
 WHERE root_id = :root_id AND ordinal >= 0
