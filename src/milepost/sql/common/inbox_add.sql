-- No row back means that this message was here before.
INSERT INTO inbox (source, message_id, at, error, content)
VALUES (:source, :message_id, {now}, :error, :content)
ON CONFLICT (source, message_id) DO NOTHING
RETURNING message_id
