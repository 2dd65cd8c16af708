-- When a job last came to wait as it does, and when a worker last had it no longer; NULL: not since it was pushed, or not known.
ALTER TABLE jobs ADD COLUMN came_at INTEGER;
ALTER TABLE jobs ADD COLUMN given_back_at INTEGER;
