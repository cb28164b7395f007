-- each
UPDATE publication SET published = :high WHERE producer_id = :producer_id
