SELECT {text:job_id}, error FROM inbox WHERE source = :source AND message_id = :message_id
