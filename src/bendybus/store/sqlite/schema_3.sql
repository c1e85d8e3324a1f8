-- A messaging store, version 3: copies that share a body, sessions, outboxes, and owners.

-- Whoever claims a partition gets the next epoch; commits under an earlier one are refused.
ALTER TABLE partition ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;

-- Of a message that came from a topic or by forwarding: its number there, and how often it was
-- forwarded. Its body has an id of its own and may be shared; of all others, body = id.
ALTER TABLE message ADD COLUMN origin INTEGER;
ALTER TABLE message ADD COLUMN hops INTEGER;

-- To know the last copy of a body. Messages sent straight to an entity are not in it.
CREATE INDEX message_by_shared_body ON message (body) WHERE origin IS NOT NULL;

-- What the holders of sessions want remembered.
CREATE TABLE session (
    id         INTEGER PRIMARY KEY,
    partition  INTEGER NOT NULL,
    session_id TEXT NOT NULL,
    updated_at INTEGER NOT NULL,
    state      BLOB NOT NULL,
    UNIQUE (partition, session_id)
);

-- Up to which number of another partition's outbox everything has arrived here.
CREATE TABLE transfer (
    partition INTEGER NOT NULL,
    source    TEXT NOT NULL,
    number    INTEGER NOT NULL,
    PRIMARY KEY (partition, source)
) WITHOUT ROWID;
