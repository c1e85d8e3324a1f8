-- A messaging store, version 2: duplicate detection.

-- What a partition remembers of accepted messages: a digest in hexadecimal digits each, swept
-- by age. The key is the order in which start-up reads them.
CREATE TABLE identity (
    partition   INTEGER NOT NULL,
    accepted_at INTEGER NOT NULL,
    digest      TEXT NOT NULL,
    PRIMARY KEY (partition, accepted_at, digest)
) WITHOUT ROWID;
