-- What a producer says of the deliveries of a job: how long a lease is by default, and how long one delivery lasts at most.
ALTER TABLE jobs ADD COLUMN default_lease_ms INTEGER;
ALTER TABLE jobs ADD COLUMN max_run_ms INTEGER;
-- When its worker last extended the lease: a sign that the worker is alive.
ALTER TABLE jobs ADD COLUMN extended_at INTEGER;
-- How long a job is kept once it is done, in milliseconds, where its producer says so.
ALTER TABLE jobs ADD COLUMN retain_result_ms INTEGER;
-- (On MongoDB this migration tightens the validator of jobs. Nobody else writes to a file of SQLite.)
-- The latest time that this store has lived through, in milliseconds: its clock does not run behind it.
CREATE TABLE clock (latest INTEGER NOT NULL) STRICT;
INSERT INTO clock VALUES (0);
-- Until when a job has its key; NULL: until it has finished.
ALTER TABLE keys ADD COLUMN lasts TEXT;
