-- Shared limits on how many jobs are reserved at once.
CREATE TABLE semaphores (name TEXT PRIMARY KEY, capacity INTEGER NOT NULL) STRICT, WITHOUT ROWID;

-- One row for each semaphore of each unfinished job, beside the job and in its transactions, so that holders and those
-- who wait are found by the semaphore.
CREATE TABLE needs (
    semaphore TEXT NOT NULL,
    job TEXT NOT NULL,
    queue TEXT NOT NULL,
    state TEXT NOT NULL,
    priority INTEGER NOT NULL,
    run_at INTEGER NOT NULL,
    waits INTEGER NOT NULL,  -- whether this is the one that the job is blocked by
    waiting_since INTEGER,
    called_at INTEGER,       -- when it was made ready again, where nobody has claimed it since
    PRIMARY KEY (semaphore, job)
) STRICT, WITHOUT ROWID;
CREATE INDEX needs_state ON needs (semaphore, state, run_at);
CREATE INDEX needs_line ON needs (semaphore, priority DESC, run_at, job) WHERE waiting_since IS NOT NULL;
CREATE INDEX needs_waits ON needs (semaphore, queue, priority DESC, run_at, job) WHERE waits = 1;

-- What queues with a rate have delivered lately, as JSON.
CREATE TABLE deliveries (queue TEXT PRIMARY KEY, recent TEXT NOT NULL) STRICT, WITHOUT ROWID;
