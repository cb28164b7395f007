-- The newest stays: the next one is to have a number that was never given.
DELETE FROM feed
 WHERE place IN (SELECT place FROM feed
                  WHERE at < {now} - :keep_us AND place < (SELECT max(place) FROM feed)
                  ORDER BY place LIMIT :most)
RETURNING place
