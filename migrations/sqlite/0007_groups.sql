-- The group that a job belongs to, and its place in the group's line while it stands there. The first in a line may
-- be delivered; the others are blocked.
ALTER TABLE jobs ADD COLUMN group_name TEXT;
ALTER TABLE jobs ADD COLUMN turn INTEGER;
CREATE UNIQUE INDEX jobs_turn ON jobs (queue, group_name, turn) WHERE turn IS NOT NULL;
CREATE INDEX jobs_group ON jobs (queue, group_name, id) WHERE group_name IS NOT NULL;

-- The semaphores that a job needs, as JSON, the one that it is blocked by, and since when it waits for them.
ALTER TABLE jobs ADD COLUMN semaphores TEXT;
ALTER TABLE jobs ADD COLUMN waits_for TEXT;
ALTER TABLE jobs ADD COLUMN waiting_since INTEGER;

-- Whether the job that was moved had to wait for its turn there.
ALTER TABLE receipts ADD COLUMN blocked INTEGER NOT NULL DEFAULT 0;
