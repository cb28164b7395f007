-- each
INSERT INTO publication (producer_id, fence, run_id, total, first_step)
VALUES (:id, :fence, :run_id, :total,
        (SELECT min(step) FROM staged WHERE producer_id = :id AND staged.fence = :fence))
