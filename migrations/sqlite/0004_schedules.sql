-- Schedules. `rule` is what the owner has set, as JSON; `version` changes with it. `rev` is a random number that
-- every write replaces, runs included; writes are guarded by it. `next_at` is the first occurrence that nobody has
-- run yet: NULL while the schedule is paused. `last_runs` are the last ten, as JSON.
CREATE TABLE schedules (
    name TEXT NOT NULL UNIQUE,
    version TEXT NOT NULL,
    rev INTEGER NOT NULL,
    next_at INTEGER,
    last_job TEXT,
    last_runs TEXT,
    rule TEXT NOT NULL
) STRICT;
-- What comes next, without a look at the rules, whose payloads may be long.
CREATE INDEX schedules_next_at ON schedules (next_at, name) WHERE next_at IS NOT NULL;
