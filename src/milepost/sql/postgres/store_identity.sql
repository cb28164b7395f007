-- Which database this is, however it was reached: the cluster's own number, and the name in it.
SELECT system_identifier || ' ' || current_database() FROM pg_control_system()
