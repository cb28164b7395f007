UPDATE idempotency SET answer = :answer WHERE scope = :scope AND key = :key
