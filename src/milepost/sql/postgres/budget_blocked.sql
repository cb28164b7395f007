SELECT greatest(0, (extract(epoch FROM blocked_until - {now}) * 1000000)::bigint)
  FROM source_budget WHERE name = :name
