-- Operations over many jobs: `body` is the record, the other columns find and guard it.
CREATE TABLE operations (
    id TEXT PRIMARY KEY,
    rev INTEGER NOT NULL,
    finished_at INTEGER,
    body TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX operations_open ON operations (id) WHERE finished_at IS NULL;
CREATE INDEX operations_finished ON operations (finished_at) WHERE finished_at IS NOT NULL;

-- What operators did: `body` is the row.
CREATE TABLE audit (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    by_key TEXT NOT NULL,
    what TEXT NOT NULL,
    queue TEXT,
    body TEXT NOT NULL
);
