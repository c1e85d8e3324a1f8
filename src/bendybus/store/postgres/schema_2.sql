-- A messaging store in PostgreSQL, version 2: which broker of a cluster owns it.

-- One row. `instance` is the process of the broker; both are empty while nobody owns the store. Each new owner
-- raises the term. A server that is alone leaves all of it as it is.
CREATE TABLE owner (
    single   boolean PRIMARY KEY DEFAULT true CHECK (single),
    broker   text NOT NULL DEFAULT '',
    instance text NOT NULL DEFAULT '',
    term     bigint NOT NULL DEFAULT 0
);
INSERT INTO owner DEFAULT VALUES;

-- Makes sure that the owner of this term is still the owner, and keeps it so until the transaction ends.
-- BB002: another broker has taken the store over.
CREATE FUNCTION refuse_displaced(mine bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM owner WHERE term = mine FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'taken over by another broker' USING ERRCODE = 'BB002';
    END IF;
END $$;
