-- For the length of a transaction that is rolled back.
CREATE SCHEMA milepost_rendered
