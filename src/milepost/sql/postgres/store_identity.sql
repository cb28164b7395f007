-- Which database this is, however it was reached: the cluster's own number, and the name in it. And
-- the schema of the table that is called `job` from here.
SELECT system_identifier || ' ' || current_database(),
       (SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = to_regclass('job'))
  FROM pg_control_system()
