-- The stages that a job still has before it, as JSON.
ALTER TABLE jobs ADD COLUMN route TEXT;
-- What a commit pushed, as JSON: its repeat answers the same.
ALTER TABLE receipts ADD COLUMN pushed TEXT;
