-- Lets the triggers remove the entries of what is deleted, until it is ended.
UPDATE retention SET active = 1
