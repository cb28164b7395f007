SELECT fingerprint, answer FROM idempotency WHERE scope = :scope AND key = :key
