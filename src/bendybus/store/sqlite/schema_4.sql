-- A messaging store, version 4: whose it is.

-- At most one row: the namespace that opened the store first.
CREATE TABLE owner (
    single    INTEGER PRIMARY KEY CHECK (single = 1),
    namespace TEXT NOT NULL
);
