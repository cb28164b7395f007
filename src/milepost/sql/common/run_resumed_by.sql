SELECT {text:id} FROM run WHERE resumes = :id
