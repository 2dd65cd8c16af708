-- The batch that a job belongs to.
ALTER TABLE jobs ADD COLUMN batch TEXT;
CREATE INDEX jobs_batch ON jobs (batch, id) WHERE batch IS NOT NULL;

-- Jobs that belong together, counted in the transactions that finish them.
CREATE TABLE batches (
    id TEXT PRIMARY KEY,
    sealed INTEGER NOT NULL,
    pending INTEGER NOT NULL,
    done INTEGER NOT NULL,
    dead INTEGER NOT NULL,
    cancelled INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    finished_at INTEGER,
    purge_at INTEGER,
    callback TEXT NOT NULL,
    on_finished TEXT  -- the job that is pushed at the end, as JSON
) STRICT, WITHOUT ROWID;
CREATE INDEX batches_purge_at ON batches (purge_at) WHERE purge_at IS NOT NULL;

-- How the jobs of batches have ended; kept with the batch, whatever history says.
CREATE TABLE batch_results (
    batch TEXT NOT NULL,
    job TEXT NOT NULL,
    queue TEXT NOT NULL,
    state TEXT NOT NULL,
    finished_at INTEGER NOT NULL,
    result TEXT,
    PRIMARY KEY (batch, job)
) STRICT;
