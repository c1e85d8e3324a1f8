-- The catalog of a cluster of brokers, version 1. It stands in a schema of its own; the session's search_path
-- names it.

-- One row: what this is, and what all brokers of the cluster know and nobody else.
CREATE TABLE about (
    single      boolean PRIMARY KEY DEFAULT true CHECK (single),
    version     integer NOT NULL,
    cluster     text NOT NULL,
    secret      bytea NOT NULL,
    certificate text NOT NULL,
    key         text NOT NULL,
    root_keys   text[] NOT NULL
);

-- The certificates that have followed the one in `about`, the newest with the highest number.
CREATE TABLE certificate (
    number      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    certificate text NOT NULL,
    key         text NOT NULL,
    shown_from  timestamptz NOT NULL
);

-- At most one row: the namespace's own settings, as JSON.
CREATE TABLE namespace (
    single      boolean PRIMARY KEY DEFAULT true CHECK (single),
    description text NOT NULL
);

-- `name` is the path in lower case, `description` a JSON object, `placement` a JSON array of store names.
CREATE TABLE entity (
    name            text COLLATE "C" PRIMARY KEY,
    path            text NOT NULL,
    kind            text NOT NULL,
    description     text NOT NULL,
    partition_count integer NOT NULL,
    placement       text NOT NULL,
    created_at      bigint NOT NULL,
    updated_at      bigint NOT NULL,
    generation      text NOT NULL
);

-- The brokers. `instance` is the process, `unreached` those of its stores that it does not reach, `heard_at` the
-- time of its last heartbeat, by the clock of this database.
CREATE TABLE broker (
    name      text COLLATE "C" PRIMARY KEY,
    instance  text NOT NULL,
    address   text NOT NULL,
    version   text NOT NULL,
    state     text NOT NULL,
    stores    text[] NOT NULL,
    unreached text[] NOT NULL DEFAULT '{}',
    joined_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    heard_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- One row: the broker that makes changes. Each new one raises the term; each change raises the revision.
CREATE TABLE leader (
    single   boolean PRIMARY KEY DEFAULT true CHECK (single),
    broker   text NOT NULL DEFAULT '',
    instance text NOT NULL DEFAULT '',
    term     bigint NOT NULL DEFAULT 0,
    revision bigint NOT NULL DEFAULT 0
);
INSERT INTO leader DEFAULT VALUES;
