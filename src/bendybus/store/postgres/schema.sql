-- A messaging store in PostgreSQL, version 1. It stands in a schema of its own; the session's search_path
-- names it. Compare sqlite/schema.sql: the tables mean the same.

-- One row: what this is, and whose.
CREATE TABLE about (
    single    boolean PRIMARY KEY DEFAULT true CHECK (single),
    version   integer NOT NULL,
    namespace text
);

-- Which partitions live here. A dropped one stays as a row without an entity until it has been
-- swept. Every commit updates its partitions' rows: with room beside them, no index is touched.
CREATE TABLE partition (
    key           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    entity        text,
    number        integer,
    next_sequence bigint NOT NULL,
    epoch         bigint NOT NULL DEFAULT 0,
    UNIQUE (entity, number)
) WITH (fillfactor = 20);

-- Whoever opens the store takes a block of ids for itself (store.py), so ids never meet.
CREATE SEQUENCE id_block;

-- One small row per message. Text that may hold a NUL is kept as bytes.
CREATE TABLE message (
    id             bigint PRIMARY KEY,
    partition      bigint NOT NULL,
    sequence       bigint NOT NULL,
    body           bigint NOT NULL,
    enqueued_at    bigint NOT NULL,
    expires_at     bigint,
    delivery_count bigint NOT NULL DEFAULT 0,
    origin         bigint,
    size           integer NOT NULL,
    hops           integer,
    state          smallint NOT NULL DEFAULT 0,
    subqueue       smallint NOT NULL DEFAULT 0,
    session_id     bytea,
    amendment      text
);

-- For `load`, page by page, and for clearing a dropped partition.
CREATE INDEX message_by_partition ON message (partition, id);

-- To know the last copy of a body. Messages sent straight to an entity are not in it.
CREATE INDEX message_by_shared_body ON message (body) WHERE origin IS NOT NULL;

-- One wide row per payload.
CREATE TABLE body (
    id      bigint PRIMARY KEY,
    payload bytea NOT NULL
);
-- Compressing what is soon removed costs more time than it saves space.
ALTER TABLE body ALTER COLUMN payload SET STORAGE EXTERNAL;

-- What duplicate detection remembers.
CREATE TABLE identity (
    partition   bigint NOT NULL,
    accepted_at bigint NOT NULL,
    digest      bytea NOT NULL,
    PRIMARY KEY (partition, accepted_at, digest)
);

-- What the holders of sessions want remembered.
CREATE TABLE session (
    partition  bigint NOT NULL,
    session_id bytea NOT NULL,
    updated_at bigint NOT NULL,
    state      bytea NOT NULL,
    PRIMARY KEY (partition, session_id)
);

-- Up to which number of another partition's outbox everything has arrived here.
CREATE TABLE transfer (
    partition bigint NOT NULL,
    source    text NOT NULL,
    number    bigint NOT NULL,
    PRIMARY KEY (partition, source)
);

-- Rows come and go by the million: sweep after 2 % and not after the usual 20 %.
ALTER TABLE message SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000);
ALTER TABLE body SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000);

-- Makes sure that the partitions are here and ours, and keeps them so until the transaction ends: their
-- rows are locked, in the order of their keys. BB001: not here. BB002: claimed since.
CREATE FUNCTION advance_partitions(keys bigint[], next_sequences bigint[], epochs bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    advanced integer;
    missing bigint;
BEGIN
    PERFORM 1 FROM partition WHERE key = ANY (keys) ORDER BY key FOR NO KEY UPDATE;
    UPDATE partition SET next_sequence = given.next_sequence
      FROM unnest(keys, next_sequences, epochs) AS given (key, next_sequence, epoch)
     WHERE partition.key = given.key AND partition.epoch = given.epoch AND partition.entity IS NOT NULL;
    GET DIAGNOSTICS advanced = ROW_COUNT;
    IF advanced <> cardinality(keys) THEN
        SELECT given.key INTO missing FROM unnest(keys) AS given (key)
         WHERE NOT EXISTS (SELECT 1 FROM partition WHERE partition.key = given.key AND entity IS NOT NULL);
        IF FOUND THEN
            RAISE EXCEPTION 'holds no partition with the key %', missing USING ERRCODE = 'BB001';
        END IF;
        RAISE EXCEPTION 'claimed by another broker' USING ERRCODE = 'BB002';
    END IF;
END $$;

-- A whole commit in one call: stored, then updated, then removed. store/encoding.py says what the arrays
-- hold; a slice is (first byte of `bytes`, from 1) << 31 | length.
CREATE FUNCTION commit_changes(
    keys bigint[], next_sequences bigint[], epochs bigint[],
    first bigint, bytes bytea, bodies bigint[],
    run_ids bigint[], run_partitions bigint[], run_sequences bigint[], run_enqueued bigint[],
    run_expires bigint[], run_starts integer[], run_lengths integer[], sizes integer[],
    row_ids bigint[], row_partitions bigint[], row_sequences bigint[], row_enqueued bigint[],
    row_expires bigint[], row_sizes integer[], row_bodies bigint[], row_origins bigint[],
    row_hops integer[], row_sessions bigint[],
    updated_ids bigint[], updated_states smallint[], updated_subqueues smallint[], updated_counts bigint[],
    updated_expires bigint[], updated_amendments text[], updated_sequences bigint[], updated_enqueued bigint[],
    removed bigint[], released bigint[]
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM advance_partitions(keys, next_sequences, epochs);

    IF cardinality(bodies) > 0 THEN
        INSERT INTO body (id, payload)
        SELECT first + slot - 1, substr(bytes, (slice >> 31)::integer, (slice & 2147483647)::integer)
          FROM unnest(bodies) WITH ORDINALITY AS given (slice, slot) WHERE slice IS NOT NULL;
    END IF;
    IF cardinality(run_ids) > 0 THEN
        INSERT INTO message (id, body, partition, sequence, enqueued_at, expires_at, size)
        SELECT run.id + slot, run.id + slot, run.partition, run.sequence + slot, run.enqueued_at,
               run.expires_at, sizes[run.start + slot]
          FROM unnest(run_ids, run_partitions, run_sequences, run_enqueued, run_expires, run_starts, run_lengths)
               AS run (id, partition, sequence, enqueued_at, expires_at, start, length),
               generate_series(0, run.length - 1) AS slot;
    END IF;
    IF cardinality(row_ids) > 0 THEN
        INSERT INTO message (id, partition, sequence, enqueued_at, expires_at, size, body, origin, hops, session_id)
        SELECT id, partition, sequence, enqueued_at, expires_at, size, body, origin, hops,
               substr(bytes, (session >> 31)::integer, (session & 2147483647)::integer)
          FROM unnest(row_ids, row_partitions, row_sequences, row_enqueued, row_expires, row_sizes, row_bodies,
                      row_origins, row_hops, row_sessions)
               AS given (id, partition, sequence, enqueued_at, expires_at, size, body, origin, hops, session);
    END IF;
    IF cardinality(updated_ids) > 0 THEN
        -- Of several updates of one message the last counts.
        UPDATE message
           SET state = change.state, subqueue = change.subqueue, delivery_count = change.delivery_count,
               expires_at = change.expires_at, amendment = change.amendment, sequence = change.sequence,
               enqueued_at = change.enqueued_at
          FROM (SELECT DISTINCT ON (id) *
                  FROM unnest(updated_ids, updated_states, updated_subqueues, updated_counts, updated_expires,
                              updated_amendments, updated_sequences, updated_enqueued) WITH ORDINALITY
                       AS given (id, state, subqueue, delivery_count, expires_at, amendment, sequence,
                                 enqueued_at, slot)
                 ORDER BY id, slot DESC) AS change
         WHERE message.id = change.id;
    END IF;
    IF cardinality(released) > 0 THEN
        -- Whoever else removes a copy of these bodies waits here, and then sees that ours is gone.
        PERFORM 1 FROM body WHERE id = ANY (released) ORDER BY id FOR UPDATE;
    END IF;
    IF cardinality(removed) > 0 THEN
        DELETE FROM message WHERE id = ANY (removed);
        DELETE FROM body WHERE id = ANY (removed);
    END IF;
    IF cardinality(released) > 0 THEN
        -- A body that copies share goes with the last of them.
        DELETE FROM body
         WHERE id = ANY (released)
           AND NOT EXISTS (SELECT 1 FROM message WHERE message.body = body.id AND message.origin IS NOT NULL);
    END IF;
END $$;
