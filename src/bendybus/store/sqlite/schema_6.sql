-- A messaging store, version 6: commits of messages count themselves where they write anyway.

-- The number of the last commit that changed the partition. The highest of these and of `progress` is the
-- number of the file's last commit (witness.py). A page of its own would make a commit of one message write a
-- third more.
ALTER TABLE partition ADD COLUMN last_commit INTEGER NOT NULL DEFAULT 0;
