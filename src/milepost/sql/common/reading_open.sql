-- What a root did not read to its end.
SELECT count(*) FROM reading WHERE root_id = :root_id AND closed_at IS NULL AND covered_by IS NULL
