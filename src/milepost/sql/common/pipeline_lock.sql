-- Starts of one pipeline wait for each other here: each sees what the one before has made.
UPDATE pipeline
   SET target = :target, queue = :queue, channel = :channel, fresh_us = :fresh_us
 WHERE name = :name
RETURNING id, mark, measure
