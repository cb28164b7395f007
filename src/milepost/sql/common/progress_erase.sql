-- What a handler said and where it stood are the user's; how much was done is not.
UPDATE progress SET message = NULL, position = NULL WHERE job_id = :id
