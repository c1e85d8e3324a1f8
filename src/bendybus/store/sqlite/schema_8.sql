-- A messaging store, version 8: commits that need not wait for earlier ones, which are in the journal (ahead.py).

-- Ranges of commits that the file has. It lacks commits before each range. They are in the journal. The end of the
-- last range is the highest number in the following column: a commit writes the rows of its partitions anyway.
CREATE TABLE ahead (
    first INTEGER PRIMARY KEY,
    last  INTEGER NOT NULL
);
ALTER TABLE partition ADD COLUMN ahead INTEGER NOT NULL DEFAULT 0;
