-- All jobs of all queues, and what is remembered beside them. Times are milliseconds since 1970 (UTC).
-- What is empty is NULL: an empty list of errors, no headers, no deadline.

CREATE TABLE jobs (
    id TEXT NOT NULL UNIQUE,
    queue TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('ready', 'reserved', 'blocked', 'done', 'dead')),
    priority INTEGER NOT NULL,
    run_at INTEGER NOT NULL,
    -- run_at, where it lay ahead when the job was last written. Nothing happens at a due time, so a mark
    -- outlives its moment until the job is claimed or `prune` wipes the mark; no claim depends on it.
    due INTEGER,
    attempts INTEGER NOT NULL,
    max_attempts INTEGER,
    backoff TEXT,
    key TEXT,
    created_at INTEGER NOT NULL,
    started_at INTEGER,
    finished_at INTEGER,
    expires_at INTEGER,
    purge_at INTEGER,
    worker TEXT,
    claim TEXT,
    reserved_until INTEGER,
    lease_ms INTEGER,
    cancel_requested INTEGER NOT NULL,
    replay_of TEXT,
    rev INTEGER NOT NULL,
    progress TEXT,
    errors TEXT,
    trail TEXT,
    origin TEXT,
    -- Last, so that reading the bookkeeping of a job does not touch the pages of a long payload.
    headers TEXT,
    result TEXT,
    payload TEXT NOT NULL
) STRICT;

-- The order of delivery. A claim steps from priority to priority, and within one it reads what is due:
-- the scheduled jobs of a priority lie behind its due ones.
CREATE INDEX jobs_head ON jobs (queue, priority DESC, run_at, id) WHERE state = 'ready';
-- Browsing, oldest first.
CREATE INDEX jobs_browse ON jobs (queue, state, id);
CREATE INDEX jobs_key ON jobs (queue, key, id) WHERE key IS NOT NULL;
CREATE INDEX jobs_origin ON jobs (queue, id) WHERE origin IS NOT NULL;
-- What has a deadline.
CREATE INDEX jobs_reserved_until ON jobs (reserved_until) WHERE state = 'reserved';
CREATE INDEX jobs_expires_at ON jobs (expires_at) WHERE expires_at IS NOT NULL AND state IN ('ready', 'blocked');
CREATE INDEX jobs_due ON jobs (due, queue) WHERE due IS NOT NULL;
CREATE INDEX jobs_purge_at ON jobs (purge_at) WHERE purge_at IS NOT NULL;

-- How many jobs of each queue are in each state, kept by the triggers below in the transaction of every
-- change, so that nobody ever counts a backlog. `ready` includes the jobs with a due mark, which `marked`
-- counts. A queue without jobs has no row.
CREATE TABLE counters (
    queue TEXT PRIMARY KEY,
    ready INTEGER NOT NULL,
    marked INTEGER NOT NULL,
    reserved INTEGER NOT NULL,
    blocked INTEGER NOT NULL,
    done INTEGER NOT NULL,
    dead INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TRIGGER jobs_counted_in AFTER INSERT ON jobs
BEGIN
    INSERT INTO counters (queue, ready, marked, reserved, blocked, done, dead)
    VALUES (NEW.queue, NEW.state = 'ready', NEW.due IS NOT NULL, NEW.state = 'reserved',
            NEW.state = 'blocked', NEW.state = 'done', NEW.state = 'dead')
    ON CONFLICT (queue) DO UPDATE SET
        ready = ready + excluded.ready, marked = marked + excluded.marked,
        reserved = reserved + excluded.reserved, blocked = blocked + excluded.blocked,
        done = done + excluded.done, dead = dead + excluded.dead;
END;

CREATE TRIGGER jobs_counted_over AFTER UPDATE OF queue, state, due ON jobs
WHEN OLD.queue = NEW.queue AND (OLD.state <> NEW.state OR (OLD.due IS NULL) <> (NEW.due IS NULL))
BEGIN
    UPDATE counters SET
        ready = ready + (NEW.state = 'ready') - (OLD.state = 'ready'),
        marked = marked + (NEW.due IS NOT NULL) - (OLD.due IS NOT NULL),
        reserved = reserved + (NEW.state = 'reserved') - (OLD.state = 'reserved'),
        blocked = blocked + (NEW.state = 'blocked') - (OLD.state = 'blocked'),
        done = done + (NEW.state = 'done') - (OLD.state = 'done'),
        dead = dead + (NEW.state = 'dead') - (OLD.state = 'dead')
    WHERE queue = NEW.queue;
END;

CREATE TRIGGER jobs_counted_away AFTER UPDATE OF queue ON jobs
WHEN OLD.queue <> NEW.queue
BEGIN
    UPDATE counters SET
        ready = ready - (OLD.state = 'ready'), marked = marked - (OLD.due IS NOT NULL),
        reserved = reserved - (OLD.state = 'reserved'), blocked = blocked - (OLD.state = 'blocked'),
        done = done - (OLD.state = 'done'), dead = dead - (OLD.state = 'dead')
    WHERE queue = OLD.queue;
    DELETE FROM counters
    WHERE queue = OLD.queue AND ready = 0 AND reserved = 0 AND blocked = 0 AND done = 0 AND dead = 0;
    INSERT INTO counters (queue, ready, marked, reserved, blocked, done, dead)
    VALUES (NEW.queue, NEW.state = 'ready', NEW.due IS NOT NULL, NEW.state = 'reserved',
            NEW.state = 'blocked', NEW.state = 'done', NEW.state = 'dead')
    ON CONFLICT (queue) DO UPDATE SET
        ready = ready + excluded.ready, marked = marked + excluded.marked,
        reserved = reserved + excluded.reserved, blocked = blocked + excluded.blocked,
        done = done + excluded.done, dead = dead + excluded.dead;
END;

CREATE TRIGGER jobs_counted_out AFTER DELETE ON jobs
BEGIN
    UPDATE counters SET
        ready = ready - (OLD.state = 'ready'), marked = marked - (OLD.due IS NOT NULL),
        reserved = reserved - (OLD.state = 'reserved'), blocked = blocked - (OLD.state = 'blocked'),
        done = done - (OLD.state = 'done'), dead = dead - (OLD.state = 'dead')
    WHERE queue = OLD.queue;
    DELETE FROM counters
    WHERE queue = OLD.queue AND ready = 0 AND reserved = 0 AND blocked = 0 AND done = 0 AND dead = 0;
END;

-- The producers' own names for jobs, with the digest of the payload as it was pushed. A key is taken until
-- the later of `until` and the end of its job. `look_at` is when `prune` looks at it next.
CREATE TABLE keys (
    queue TEXT NOT NULL,
    key TEXT NOT NULL,
    job TEXT NOT NULL,
    digest BLOB NOT NULL,
    until INTEGER NOT NULL,
    run_at INTEGER NOT NULL,
    look_at INTEGER NOT NULL,
    PRIMARY KEY (queue, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX keys_look_at ON keys (look_at);

-- What became of operations that a repeat could not find out from the job.
CREATE TABLE receipts (
    job TEXT NOT NULL,
    claim TEXT NOT NULL,
    verb TEXT NOT NULL,
    queue TEXT NOT NULL,
    started_at INTEGER,
    returned_to TEXT,  -- NULL: the job was taken away
    run_at INTEGER,
    until INTEGER NOT NULL,
    PRIMARY KEY (job, claim, verb)
) STRICT, WITHOUT ROWID;
CREATE INDEX receipts_until ON receipts (until);

-- Reserves that carry an Idempotency-Key. `won` is NULL while one is running.
CREATE TABLE requests (
    id TEXT PRIMARY KEY,
    digest BLOB NOT NULL,
    claim TEXT NOT NULL,
    pending_until INTEGER NOT NULL,
    won TEXT,
    until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX requests_until ON requests (until);

CREATE TABLE settings (
    queue TEXT PRIMARY KEY,
    settings TEXT NOT NULL,
    version TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- One row: grows with every change of settings.
CREATE TABLE settings_revision (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    revision INTEGER NOT NULL
) STRICT;
INSERT INTO settings_revision (only, revision) VALUES (1, 0);
