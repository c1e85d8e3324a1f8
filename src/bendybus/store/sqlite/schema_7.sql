-- A messaging store, version 7: messages that are removed, and whose rows are deleted later (removals.py).

-- Ids of messages, as JSON. The messages do not exist any more; rows that they still have are of no use.
CREATE TABLE removal (
    id  INTEGER PRIMARY KEY AUTOINCREMENT,
    ids TEXT NOT NULL
);
