UPDATE inbox SET job_id = :job_id WHERE source = :source AND message_id = :message_id
