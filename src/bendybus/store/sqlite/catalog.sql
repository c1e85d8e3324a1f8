-- The catalog, version 1.

-- At most one row: the namespace's own settings, as JSON.
CREATE TABLE namespace (
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    description TEXT NOT NULL
);

-- `description` is a JSON object, `placement` a JSON array of store names.
CREATE TABLE entity (
    path            TEXT PRIMARY KEY COLLATE NOCASE,
    kind            TEXT NOT NULL,
    description     TEXT NOT NULL,
    partition_count INTEGER NOT NULL,
    placement       TEXT NOT NULL,
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL,
    generation      TEXT NOT NULL
) WITHOUT ROWID;
