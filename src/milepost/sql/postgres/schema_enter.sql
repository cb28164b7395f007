-- For this transaction: migrations say plain names, and write this one into what they leave behind.
SET LOCAL search_path TO {schema}, pg_temp
