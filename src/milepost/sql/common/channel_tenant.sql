-- Whose a channel is; no row, or NULL, while nobody declared it.
SELECT tenant FROM channel WHERE name = :name
