-- (On MongoDB this migration has the validator pass changes of jobs that it would refuse as new ones. Here nothing does.)
-- How many requests an API key may make in a time (JSON, as the `rate` of a queue), and at once.
ALTER TABLE api_keys ADD COLUMN rate TEXT;
ALTER TABLE api_keys ADD COLUMN max_concurrent INTEGER;
