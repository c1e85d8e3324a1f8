-- The catalog, version 2: how many commits it has had (witness.py).

-- One row.
CREATE TABLE progress (
    single  INTEGER PRIMARY KEY CHECK (single = 1),
    commits INTEGER NOT NULL
);
INSERT INTO progress (single, commits) VALUES (1, 0);
