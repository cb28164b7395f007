SELECT least_us, set_at, set_by FROM retention
