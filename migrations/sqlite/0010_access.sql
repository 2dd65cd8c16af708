-- API keys: of the text of a key only its SHA-256 is kept. `scopes` and `queues` (patterns of names; none: all queues) are
-- JSON. Times are milliseconds since 1970 (UTC). Writes but those of `last_used_at` raise the revision of the settings.
CREATE TABLE api_keys (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    hash BLOB NOT NULL,
    scopes TEXT NOT NULL,
    queues TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    last_used_at INTEGER
) STRICT, WITHOUT ROWID;

-- The API key that created a batch, where it is for some queues only.
ALTER TABLE batches ADD COLUMN owner TEXT;

-- Secrets that all servers over one database share: `reservations` is what the tokens of reservations are made with.
CREATE TABLE secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID;
