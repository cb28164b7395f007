-- each
DELETE FROM staged
 WHERE producer_id = :producer_id AND fence = :fence AND seq >= :low AND seq < :high
