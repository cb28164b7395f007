UPDATE retention SET least_us = :least_us, set_at = {now}, set_by = :actor
