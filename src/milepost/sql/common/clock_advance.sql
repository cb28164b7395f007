UPDATE clock SET offset_us = offset_us + :by_us
