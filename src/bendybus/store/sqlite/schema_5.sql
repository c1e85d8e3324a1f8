-- A messaging store, version 5: how many commits it has had (witness.py).

-- One row. Every commit counts itself, so each has this page in the log.
CREATE TABLE progress (
    single  INTEGER PRIMARY KEY CHECK (single = 1),
    commits INTEGER NOT NULL
);
INSERT INTO progress (single, commits) VALUES (1, 0);
