-- A messaging store, version 8: commits that need not wait for earlier ones, which are in the journal (ahead.py).

-- Ranges of commits that the file has. It lacks commits before each range. They are in the journal.
CREATE TABLE ahead (
    first INTEGER PRIMARY KEY,
    last  INTEGER NOT NULL
);
