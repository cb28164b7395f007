SELECT set_config('milepost.retaining', '', true)
