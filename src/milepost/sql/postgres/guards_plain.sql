-- Names are then spelled in full, whatever the caller's search_path is.
SELECT set_config('search_path', 'pg_catalog', true)
