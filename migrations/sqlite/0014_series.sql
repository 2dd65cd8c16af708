-- How much happened in each step of time, of each queue and of all together (whose `subject` is empty), by the server that did it;
-- and how many jobs there were at its begin. In the order of time, so that what is written together lies together.
CREATE TABLE series (
    span INTEGER NOT NULL,  -- milliseconds
    at INTEGER NOT NULL,
    subject TEXT NOT NULL,
    server TEXT NOT NULL,
    tally BLOB,
    depth BLOB,
    PRIMARY KEY (span, at, subject, server)
) STRICT, WITHOUT ROWID;

-- Since when and until when each server is known to have been there, and since when it says how many jobs each queue has.
CREATE TABLE series_runs (
    server TEXT PRIMARY KEY,
    since INTEGER NOT NULL,
    seen INTEGER NOT NULL,
    turn INTEGER
) STRICT, WITHOUT ROWID;
