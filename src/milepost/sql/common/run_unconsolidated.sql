-- What is not done yet: pages that somebody took and did not finish count (H-67).
SELECT coalesce(sum(pending), 0) FROM page WHERE root_id = :root_id AND pending > 0
