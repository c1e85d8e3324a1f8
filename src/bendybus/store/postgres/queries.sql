-- The statements of a messaging store in PostgreSQL. `search_path` names the store's schema.

-- name: prepare_session
-- Commits are durable whatever the server's default, no reply is awaited for ever, and plans use the indexes
-- even if the tables were empty when the planner saw them.
SELECT set_config('search_path', %(search_path)s, false),
       set_config('synchronous_commit',
                  CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'
                  ELSE current_setting('synchronous_commit') END, false),
       set_config('default_transaction_isolation', 'read committed', false),
       set_config('statement_timeout', %(statement_timeout)s, false),
       set_config('idle_in_transaction_session_timeout', %(idle_timeout)s, false),
       set_config('client_min_messages', 'warning', false),
       set_config('enable_seqscan', 'off', false),
       set_config('enable_hashjoin', 'off', false),
       set_config('enable_mergejoin', 'off', false),
       set_config('plan_cache_mode', 'force_generic_plan', false),
       set_config('jit', 'off', false);

-- name: look
-- What is at the store's address: nothing yet, something else, or a store. Writes nothing.
SELECT (SELECT count(*) FROM pg_namespace WHERE nspname = %(schema)s) AS schemas,
       (SELECT count(*) FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
         WHERE nspname = %(schema)s AND relkind IN ('r', 'p', 'v')) AS tables,
       (SELECT count(*) FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
         WHERE nspname = %(schema)s AND relname = 'about' AND relkind = 'r') AS about,
       current_setting('server_encoding') AS encoding,
       current_setting('server_version_num')::integer AS server_version,
       current_setting('fsync') AS fsync,
       pg_is_in_recovery() AS standby;

-- name: tables
-- The store's tables that exist.
SELECT relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
 WHERE nspname = %(schema)s AND relkind = 'r';

-- name: about
-- The schema's version, and the namespace that the store belongs to.
SELECT version, namespace FROM about;

-- name: identity
-- Identifies the store, whatever its address: the cluster's own number, the database, the schema.
SELECT (SELECT system_identifier FROM pg_control_system())
       || '/' || (SELECT oid FROM pg_database WHERE datname = current_database());

-- name: timeline
-- The cluster's own number, and which history of it this is. `pg_control_checkpoint` would tell of the one before
-- until the first checkpoint after a promotion.
SELECT (SELECT system_identifier FROM pg_control_system())::text,
       CASE WHEN pg_is_in_recovery() THEN 0
            ELSE ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer END;

-- name: take_turn
-- Processes that open a store at the same time examine and change it one after the other.
SELECT pg_advisory_xact_lock(hashtextextended('bendybus ' || %(schema)s, 0));

-- name: begin_about
-- For a new store.
INSERT INTO about (version) VALUES (%s);

-- name: set_version
-- For a store that has just been migrated.
UPDATE about SET version = %s;

-- name: adopt
-- A store belongs to the first namespace that opens it.
UPDATE about SET namespace = %s WHERE namespace IS NULL;

-- name: hand_over
-- A restored store belongs to the namespace that was restored with it.
UPDATE about SET namespace = %s;

-- name: owner
-- The broker that owns the store, its process, and its term.
SELECT broker, instance, term FROM owner;

-- name: take
-- Become the owner, unless somebody else did since the term was read.
UPDATE owner SET broker = %s, instance = %s, term = term + 1 WHERE term = %s RETURNING term;

-- name: release
-- The owner gives the store up.
UPDATE owner SET broker = '', instance = '' WHERE term = %s;

-- name: refuse_displaced
-- First in every transaction of an owner, except commits: those are checked by the epochs of partitions.
SELECT refuse_displaced(%s);

-- name: be_patient
-- For a session that is idle while a dump is made.
SELECT set_config('statement_timeout', '0', false),
       set_config('idle_in_transaction_session_timeout', '0', false);

-- name: begin_image
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;

-- name: export_snapshot
SELECT pg_export_snapshot();

-- name: take_ids
-- A block of ids that no other opener has.
SELECT nextval('id_block');

-- name: commit
-- One call, one transaction, one round trip.
SELECT commit_changes(
    %t::bigint[], %t::bigint[], %t::bigint[],
    %s::bigint, %b::bytea, %t::bigint[],
    %t::bigint[], %t::bigint[], %t::bigint[], %t::bigint[],
    %t::bigint[], %t::integer[], %t::integer[], %t::integer[],
    %t::bigint[], %t::bigint[], %t::bigint[], %t::bigint[],
    %t::bigint[], %t::integer[], %t::bigint[], %t::bigint[],
    %t::integer[], %t::bigint[],
    %t::bigint[], %t::smallint[], %t::smallint[], %t::bigint[],
    %t::bigint[], %b::text[], %t::bigint[], %t::bigint[],
    %t::bigint[], %t::bigint[]);

-- name: forget
-- Remove digests that are older than the duplicate detection window.
DELETE FROM identity WHERE partition = %s AND accepted_at <= %s;

-- name: remember
-- Digests of the messages that a partition accepted at one time.
INSERT INTO identity (partition, accepted_at, digest) SELECT %s, %s, unnest(%b::bytea[])
ON CONFLICT DO NOTHING;

-- name: save_session_state
-- The state that a session's holder has set.
INSERT INTO session (partition, session_id, updated_at, state) VALUES (%s, %b, %s, %b)
ON CONFLICT (partition, session_id) DO UPDATE SET updated_at = excluded.updated_at, state = excluded.state;

-- name: forget_session_state
-- A state that was cleared.
DELETE FROM session WHERE partition = %s AND session_id = %b;

-- name: mark_transferred
-- The number up to which a source's outbox has arrived in this partition.
INSERT INTO transfer (partition, source, number) VALUES (%s, %s, %s)
ON CONFLICT (partition, source) DO UPDATE SET number = excluded.number;

-- name: partitions
-- The partitions in this store, without those that have been dropped.
SELECT key, entity, number FROM partition WHERE entity IS NOT NULL ORDER BY key;

-- name: create_partitions
-- An existing partition stays as it is.
INSERT INTO partition (entity, number, next_sequence)
SELECT %s, given.number, given.next_sequence
  FROM unnest(%s::integer[], %s::bigint[]) AS given (number, next_sequence) ORDER BY given.number
ON CONFLICT (entity, number) DO NOTHING;

-- name: partitions_of
-- Some partitions of one entity.
SELECT key, entity, number FROM partition WHERE entity = %s AND number = ANY (%s::integer[]) ORDER BY number;

-- name: drop_partitions
-- The entity is gone as soon as this is durable; `clear_bodies` and the following statements sweep later.
UPDATE partition SET entity = NULL, number = NULL WHERE entity = %s RETURNING key;

-- name: discard
-- The same for some partitions, by their keys.
UPDATE partition SET entity = NULL, number = NULL WHERE key = ANY (%s::bigint[]) AND entity IS NOT NULL
RETURNING key;

-- name: dropped_partitions
-- Dropped, and not swept yet.
SELECT key FROM partition WHERE entity IS NULL ORDER BY key;

-- name: claim
-- The next epoch. Commits under earlier epochs are refused from now on; a running one is awaited.
UPDATE partition SET epoch = epoch + 1 WHERE key = ANY (%s::bigint[]) AND entity IS NOT NULL
RETURNING key, epoch;

-- name: lock_bodies
-- Lock the payloads of a dropped partition's next few messages: others that remove a copy wait.
SELECT 1 FROM body
 WHERE id = ANY (ARRAY(SELECT body FROM message WHERE partition = %(key)s ORDER BY id LIMIT %(rows)s))
 ORDER BY id FOR UPDATE;

-- name: clear_bodies
-- Remove those payloads, except those that other partitions share.
DELETE FROM body
 WHERE id = ANY (ARRAY(SELECT body FROM message WHERE partition = %(key)s ORDER BY id LIMIT %(rows)s))
   AND NOT EXISTS (SELECT 1 FROM message
                    WHERE message.body = body.id AND message.origin IS NOT NULL AND partition <> %(key)s);

-- name: clear_messages
-- Remove those messages.
DELETE FROM message
 WHERE id = ANY (ARRAY(SELECT id FROM message WHERE partition = %(key)s ORDER BY id LIMIT %(rows)s));

-- name: clear_identities
-- Remove some of its digests.
DELETE FROM identity
 WHERE ctid = ANY (ARRAY(SELECT ctid FROM identity WHERE partition = %(key)s LIMIT %(rows)s));

-- name: clear_sessions
-- Remove some of its session states.
DELETE FROM session
 WHERE ctid = ANY (ARRAY(SELECT ctid FROM session WHERE partition = %(key)s LIMIT %(rows)s));

-- name: clear_transfers
-- Remove its marks: one for each source, so few.
DELETE FROM transfer WHERE partition = %(key)s;

-- name: clear_partition
-- Remove the dropped partition, once it is empty.
DELETE FROM partition
 WHERE key = %(key)s AND entity IS NULL AND NOT EXISTS (SELECT 1 FROM message WHERE partition = %(key)s)
   AND NOT EXISTS (SELECT 1 FROM identity WHERE partition = %(key)s)
   AND NOT EXISTS (SELECT 1 FROM session WHERE partition = %(key)s);

-- name: next_sequence
-- A partition's counter.
SELECT next_sequence FROM partition WHERE key = %s AND entity IS NOT NULL;

-- name: load_page
-- Some of a partition's messages, from an id upwards.
SELECT id, sequence, enqueued_at, expires_at, size, session_id, state, subqueue, delivery_count, amendment,
       origin, hops, body
  FROM message WHERE partition = %s AND id > %s ORDER BY id LIMIT %s;

-- name: load_identities
-- Some of a partition's digests, oldest first.
SELECT accepted_at, digest FROM identity
 WHERE partition = %s AND (accepted_at, digest) > (%s, %b) ORDER BY accepted_at, digest LIMIT %s;

-- name: load_sessions
-- The sessions that have a state.
SELECT session_id, length(state), updated_at FROM session WHERE partition = %s ORDER BY session_id;

-- name: load_transfers
-- All of a partition's marks.
SELECT source, number FROM transfer WHERE partition = %s;

-- name: session_state
-- The state of one session.
SELECT state FROM session WHERE partition = %s AND session_id = %b;

-- name: read
-- Payloads by id.
SELECT id, payload FROM body WHERE id = ANY (%s::bigint[]);
