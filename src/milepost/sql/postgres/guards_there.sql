SELECT set_config('search_path', 'milepost_rendered', true)
