-- The statements of a cluster's catalog in PostgreSQL. `search_path` names its schema.

-- name: version
-- The schema's version.
SELECT version FROM about;

-- name: found
-- What the brokers of a new cluster share. The first broker makes it.
INSERT INTO about (version, cluster, secret, certificate, key, root_keys) VALUES (%s, %s, %b, %s, %s, %s);

-- name: secrets
-- What the brokers of the cluster share.
SELECT cluster, secret, certificate, key, root_keys FROM about;

-- name: certificates
-- The certificates that have followed the first one, in their order.
SELECT certificate, key, extract(epoch FROM shown_from)::float8 FROM certificate ORDER BY number;

-- name: add_certificate
-- Becomes the newest.
INSERT INTO certificate (certificate, key, shown_from) VALUES (%s, %s, to_timestamp(%s));

-- name: forget_certificates
-- All but this many of the newest.
DELETE FROM certificate WHERE number NOT IN (SELECT number FROM certificate ORDER BY number DESC LIMIT %s);

-- name: add_certificate_table
-- Catalogs that were made before there was this table.
CREATE TABLE IF NOT EXISTS certificate (
    number      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    certificate text NOT NULL,
    key         text NOT NULL,
    shown_from  timestamptz NOT NULL
);

-- name: namespace
-- The namespace's settings.
SELECT description FROM namespace;

-- name: describe_namespace
-- Set or replace the namespace's settings.
INSERT INTO namespace (description) VALUES (%s)
ON CONFLICT (single) DO UPDATE SET description = excluded.description;

-- name: entities
-- Everything that exists.
SELECT path, kind, description, partition_count, placement, created_at, updated_at, generation
  FROM entity ORDER BY name;

-- name: revision
-- Counts the changes.
SELECT revision FROM leader;

-- name: begin_change
-- First in every change: only the broker that leads makes one, and what it does is counted.
UPDATE leader SET revision = revision + 1 WHERE term = %s RETURNING revision;

-- name: confirm_lead
-- Changes lock this row first (`begin_change`), so this waits for one that is still under way.
SELECT 1 FROM leader WHERE term = %s FOR UPDATE;

-- name: add
-- Nothing happens if the name is taken; the caller sees that by the row count.
INSERT INTO entity (kind, description, partition_count, placement, created_at, updated_at, generation, path, name)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (name) DO NOTHING;

-- name: replace
-- The path keeps the spelling it was created with.
UPDATE entity
   SET kind = %s, description = %s, partition_count = %s, placement = %s, created_at = %s, updated_at = %s,
       generation = %s
 WHERE name = %s;

-- name: remove
-- Remove one entity.
DELETE FROM entity WHERE name = %s;

-- name: join
-- A broker starts. Nothing happens if another process of this name is alive; the caller sees that by the row
-- count.
INSERT INTO broker (name, instance, address, version, state, stores)
VALUES (%(name)s, %(instance)s, %(address)s, %(version)s, %(state)s, %(stores)s)
ON CONFLICT (name) DO UPDATE
   SET instance = excluded.instance, address = excluded.address, version = excluded.version,
       state = excluded.state, stores = excluded.stores, unreached = excluded.unreached, joined_at = excluded.joined_at,
       heard_at = excluded.heard_at
 WHERE broker.state = 'gone'
    OR clock_timestamp() - broker.heard_at > make_interval(secs => %(dead_after_s)s);

-- name: silence
-- How long ago this process was heard of.
SELECT extract(epoch FROM clock_timestamp() - heard_at)::float8 FROM broker WHERE name = %s AND instance = %s;

-- name: be_brief
-- A heartbeat that a crash of the database takes back does no harm, so nobody waits for its disk. But with a
-- synchronous standby it waits for that one: on a primary that the standby has replaced, a heartbeat fails, and does
-- not find that all other brokers are silent.
SELECT set_config('synchronous_commit',
                  CASE current_setting('synchronous_standby_names') WHEN '' THEN 'off' ELSE 'remote_write' END, true);

-- name: beat
-- This process is alive.
UPDATE broker SET heard_at = clock_timestamp(), state = %s WHERE name = %s AND instance = %s;

-- name: brokers
-- All brokers, and how long ago each was heard of.
SELECT name, instance, address, version, state, stores, extract(epoch FROM clock_timestamp() - heard_at)::float8,
       extract(epoch FROM joined_at)::float8, unreached
  FROM broker ORDER BY name;

-- name: reach
-- Which of its stores a broker does not reach.
UPDATE broker SET unreached = %s WHERE name = %s AND instance = %s;

-- name: add_unreached
-- Catalogs that were made before there was this column.
ALTER TABLE broker ADD COLUMN IF NOT EXISTS unreached text[] NOT NULL DEFAULT '{}';

-- name: leader
-- The broker that makes changes.
SELECT broker, instance, term, revision FROM leader;

-- name: lead
-- Become it, unless somebody else did since the term was read.
UPDATE leader SET broker = %s, instance = %s, term = term + 1 WHERE term = %s RETURNING term;

-- name: forget_brokers
-- Those that have been away for a week are not shown any more.
DELETE FROM broker WHERE clock_timestamp() - heard_at > interval '7 days';
