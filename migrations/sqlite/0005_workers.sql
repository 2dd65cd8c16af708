-- Workers that have sent a heartbeat. Times are milliseconds since 1970 (UTC).
CREATE TABLE workers (
    name TEXT PRIMARY KEY,
    version TEXT,
    slots INTEGER,
    seen_at INTEGER NOT NULL,
    timeout_ms INTEGER NOT NULL,
    -- When it counts as silent, unless it is heard of before; NULL: it is not waited for any more.
    silent_at INTEGER,
    -- When a worker that has fallen silent is forgotten.
    forget_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX workers_silent_at ON workers (silent_at) WHERE silent_at IS NOT NULL;
CREATE INDEX workers_forget_at ON workers (forget_at) WHERE forget_at IS NOT NULL;

-- What a worker holds, the latest delivery first.
CREATE INDEX jobs_worker ON jobs (worker, started_at DESC) WHERE state = 'reserved' AND worker IS NOT NULL;
