-- A messaging store, version 1.

-- Which partitions live here. A dropped partition stays as a row without an entity until
-- its messages have been cleared away; AUTOINCREMENT keeps its key from ever meaning another.
CREATE TABLE partition (
    key           INTEGER PRIMARY KEY AUTOINCREMENT,
    entity        TEXT,
    number        INTEGER,
    next_sequence INTEGER NOT NULL,
    UNIQUE (entity, number)
);

-- One small row per message. Ids are counted by the store, so new rows always go to the
-- right edge of the tree. All that start-up reads is here.
CREATE TABLE message (
    id             INTEGER PRIMARY KEY,
    partition      INTEGER NOT NULL,
    sequence       INTEGER NOT NULL,
    body           INTEGER NOT NULL,
    state          INTEGER NOT NULL DEFAULT 0,
    subqueue       INTEGER NOT NULL DEFAULT 0,
    delivery_count INTEGER NOT NULL DEFAULT 0,
    enqueued_at    INTEGER NOT NULL,
    expires_at     INTEGER,
    size           INTEGER NOT NULL,
    session_id     TEXT,
    amendment      TEXT
);

-- For `load` and for clearing a dropped partition.
CREATE INDEX message_by_partition ON message (partition);

-- One wide row per payload. Apart from `message`, so that nothing but `read` ever meets one.
CREATE TABLE body (
    id      INTEGER PRIMARY KEY,
    payload BLOB NOT NULL
);
