-- Lets the triggers remove the entries of what is deleted, until the end of this transaction.
SELECT set_config('milepost.retaining', 'on', true)
