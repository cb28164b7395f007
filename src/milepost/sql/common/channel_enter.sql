-- A channel that no program declares is one all the same once it has a message.
INSERT INTO channel (name)
SELECT CAST(:name AS text) WHERE EXISTS (SELECT 1 FROM outbox WHERE channel = CAST(:name AS text))
ON CONFLICT (name) DO NOTHING
