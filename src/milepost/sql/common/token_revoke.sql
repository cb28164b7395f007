UPDATE token SET revoked_at = {now}
 WHERE (id = :word OR name = :word) AND revoked_at IS NULL
RETURNING id
