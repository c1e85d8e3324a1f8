-- The statements of a messaging store in SQLite.

-- name: define_commit
-- A row inserted into such a view is one commit, or several that follow each other. A view belongs to the writer's connection, not to the
-- file. Its name tells its steps, one for each of the columns from `bodies` to `remembered` (commits.py). All
-- other columns of these are null.
--   bytes     all payloads and session ids, end to end
--   counters  JSON [[partition, next_sequence, epoch], ...]
--   number    of the last commit, in the file
--   ahead     1 if earlier commits are still in the journal (ahead.py), otherwise 0
--   bodies    JSON [[first id, [slice of bytes, ...]], ...]        a slice for each id; null if it has no body
--   runs      JSON [[first id, partition, first sequence, enqueued_at, expires_at, [size, ...]], ...]
--   copies    JSON [[first id, step, partition, first sequence, enqueued_at, expires_at, first body, step, first
--                    origin, hops, [size, ...]], ...]              of a topic's messages
--   rows      JSON [[id, partition, sequence, enqueued_at, expires_at, size, body, origin, hops,
--                    slice of session id], ...]                    messages that fit into no run
--   updated   JSON [[id, state, subqueue, delivery_count, expires_at, amendment, sequence, enqueued_at], ...]
--   removed   JSON [id, ...]
--   noted     JSON [id, ...]                                       removed too; their rows are deleted later
--   released  JSON [body, ...]                                     of removed messages that have an origin
--   remembered  JSON [[partition, accepted_at, [digest, ...]], ...]  of messages that were accepted
-- A slice is (first byte, from 1) << 31 | length.
CREATE TEMP VIEW IF NOT EXISTS {view} AS
SELECT NULL AS bytes, NULL AS counters, NULL AS number, NULL AS ahead, NULL AS bodies, NULL AS runs,
       NULL AS copies, NULL AS rows, NULL AS updated, NULL AS removed, NULL AS noted, NULL AS released,
       NULL AS remembered;

-- name: define_commit_steps
-- What such a row does: nothing at all if a newer claim exists; otherwise the steps below, in their order. A later
-- commit may have counted further already (ahead.py).
CREATE TEMP TRIGGER IF NOT EXISTS apply_{view} INSTEAD OF INSERT ON {view} BEGIN
    SELECT RAISE(ABORT, 'claimed by another broker')
      FROM json_each(NEW.counters) AS counter, partition
     WHERE partition.key = json_extract(counter.value, '$[0]')
       AND partition.epoch <> json_extract(counter.value, '$[2]');

    UPDATE partition
       SET next_sequence = iif(EXISTS (SELECT 1 FROM ahead),
                               max(next_sequence, json_extract(counter.value, '$[1]')),
                               json_extract(counter.value, '$[1]')),
           last_commit = iif(NEW.ahead, last_commit, NEW.number),
           ahead = iif(NEW.ahead, NEW.number, ahead)
      FROM json_each(NEW.counters) AS counter
     WHERE partition.key = json_extract(counter.value, '$[0]');

{steps}
END;

-- name: commit
-- One step, one transaction: SQLite begins it, syncs it, or undoes it whole.
INSERT INTO {view} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: commit_bodies
-- The payloads of new messages.
    INSERT INTO body (id, payload)
    SELECT run.id + slot.key, substr(NEW.bytes, slot.value >> 31, slot.value & 0x7fffffff)
      FROM (SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS slices
              FROM json_each(NEW.bodies) LIMIT -1) AS run,
           json_each(run.slices) AS slot
     WHERE slot.value IS NOT NULL;

-- name: commit_runs
-- New messages. LIMIT -1 keeps SQLite from taking the run apart again for each of its messages.
    INSERT INTO message (id, body, partition, sequence, enqueued_at, expires_at, size)
    SELECT run.id + slot.key, run.id + slot.key, run.partition, run.sequence + slot.key,
           run.enqueued_at, run.expires_at, slot.value
      FROM (SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS partition,
                   json_extract(value, '$[2]') AS sequence, json_extract(value, '$[3]') AS enqueued_at,
                   json_extract(value, '$[4]') AS expires_at, json_extract(value, '$[5]') AS sizes
              FROM json_each(NEW.runs) LIMIT -1) AS run,
           json_each(run.sizes) AS slot;

-- name: commit_copies
-- New copies of a topic's messages.
    INSERT INTO message (id, partition, sequence, enqueued_at, expires_at, size, body, origin, hops)
    SELECT run.id + slot.key * run.step, run.partition, run.sequence + slot.key, run.enqueued_at,
           run.expires_at, slot.value, run.body + slot.key * run.body_step, run.origin + slot.key, run.hops
      FROM (SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS step,
                   json_extract(value, '$[2]') AS partition, json_extract(value, '$[3]') AS sequence,
                   json_extract(value, '$[4]') AS enqueued_at, json_extract(value, '$[5]') AS expires_at,
                   json_extract(value, '$[6]') AS body, json_extract(value, '$[7]') AS body_step,
                   json_extract(value, '$[8]') AS origin, json_extract(value, '$[9]') AS hops,
                   json_extract(value, '$[10]') AS sizes
              FROM json_each(NEW.copies) LIMIT -1) AS run,
           json_each(run.sizes) AS slot;

-- name: commit_rows
-- New messages that fit into no run.
    INSERT INTO message (id, partition, sequence, enqueued_at, expires_at, size, body, origin, hops, session_id)
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
           json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]'),
           json_extract(value, '$[6]'), json_extract(value, '$[7]'), json_extract(value, '$[8]'),
           CAST(substr(NEW.bytes, json_extract(value, '$[9]') >> 31,
                                  json_extract(value, '$[9]') & 0x7fffffff) AS TEXT)
      FROM json_each(NEW.rows);

-- name: commit_updated
-- Messages that changed, new ones among them.
    UPDATE message
       SET state = json_extract(change.value, '$[1]'),
           subqueue = json_extract(change.value, '$[2]'),
           delivery_count = json_extract(change.value, '$[3]'),
           expires_at = json_extract(change.value, '$[4]'),
           amendment = json_extract(change.value, '$[5]'),
           sequence = json_extract(change.value, '$[6]'),
           enqueued_at = json_extract(change.value, '$[7]')
      FROM json_each(NEW.updated) AS change
     WHERE message.id = json_extract(change.value, '$[0]');

-- name: commit_removed
-- Messages that are deleted now.
    DELETE FROM message WHERE id IN (SELECT value FROM json_each(NEW.removed));
    DELETE FROM body WHERE id IN (SELECT value FROM json_each(NEW.removed));

-- name: commit_noted
-- Messages that are removed, and whose rows are deleted later.
    INSERT INTO removal (ids) SELECT NEW.noted WHERE NEW.noted IS NOT NULL;

-- name: commit_released
-- A body that copies share goes with the last of them.
    DELETE FROM body
     WHERE id IN (SELECT value FROM json_each(NEW.released))
       AND NOT EXISTS (SELECT 1 FROM message WHERE message.body = body.id AND message.origin IS NOT NULL);

-- name: commit_remembered
-- What duplicate detection has to remember.
    INSERT OR IGNORE INTO identity (partition, accepted_at, digest)
    SELECT run.partition, run.accepted_at, digest.value
      FROM (SELECT json_extract(value, '$[0]') AS partition, json_extract(value, '$[1]') AS accepted_at,
                   json_extract(value, '$[2]') AS digests
              FROM json_each(NEW.remembered) LIMIT -1) AS run,
           json_each(run.digests) AS digest;

-- name: ahead
-- The commits that the file has ahead of others.
SELECT first, iif(first = (SELECT max(first) FROM ahead), max(last, (SELECT max(ahead) FROM partition)), last)
  FROM ahead ORDER BY first;

-- name: begin_ahead
-- A range begins with this commit.
INSERT INTO ahead (first, last) VALUES (?1, ?1);

-- name: end_ahead
-- Where the last range has ended.
UPDATE ahead SET last = ?2 WHERE first = ?1;

-- name: forget_ahead
-- No commits are missing before these ranges any more.
DELETE FROM ahead WHERE first <= ?;

-- name: removals
-- The messages that are removed, and that may still have rows (removals.py).
SELECT id, ids FROM removal ORDER BY id;

-- name: delete_removed
-- Delete rows of such messages.
DELETE FROM message WHERE id IN (SELECT value FROM json_each(?));

-- name: delete_removed_bodies
-- Delete their payloads.
DELETE FROM body WHERE id IN (SELECT value FROM json_each(?));

-- name: forget_removals
-- They have no rows any more.
DELETE FROM removal WHERE id <= ?;

-- name: count_commit
-- For transactions that do not consist of such rows.
UPDATE progress SET commits = ?;

-- name: last_commit
-- The number of the last commit before which none is missing.
SELECT max(commits, (SELECT coalesce(max(last_commit), 0) FROM partition)) FROM progress;

-- name: save_session_state
-- The state that a session's holder has set.
INSERT INTO session (partition, session_id, updated_at, state) VALUES (?, ?, ?, ?)
ON CONFLICT (partition, session_id) DO UPDATE SET updated_at = excluded.updated_at, state = excluded.state;

-- name: forget_session_state
-- A state that was cleared.
DELETE FROM session WHERE partition = ? AND session_id = ?;

-- name: session_state
-- The state of one session.
SELECT state FROM session WHERE partition = ? AND session_id = ?;

-- name: load_sessions
-- The sessions that have a state.
SELECT session_id, length(state), updated_at FROM session WHERE partition = ? ORDER BY session_id;

-- name: mark_transferred
-- The number up to which a source's outbox has arrived in this partition.
INSERT INTO transfer (partition, source, number) VALUES (?, ?, ?)
ON CONFLICT (partition, source) DO UPDATE SET number = excluded.number;

-- name: load_transfers
-- All of a partition's marks.
SELECT source, number FROM transfer WHERE partition = ?;

-- name: claim
-- The next epoch. Commits under earlier epochs are refused from now on.
UPDATE partition SET epoch = epoch + 1
 WHERE key IN (SELECT value FROM json_each(?)) AND entity IS NOT NULL
RETURNING key, epoch;

-- name: forget
-- Remove digests that are older than the duplicate detection window.
DELETE FROM identity WHERE partition = ? AND accepted_at <= ?;

-- name: load_identities
-- Some of a partition's digests, oldest first, as one JSON array.
SELECT json_group_array(json_array(accepted_at, digest))
  FROM (SELECT accepted_at, digest FROM identity
         WHERE partition = ? AND (accepted_at, digest) > (?, ?) ORDER BY accepted_at, digest LIMIT ?);

-- name: owner
-- The namespace that the store belongs to.
SELECT namespace FROM owner;

-- name: adopt
-- A store belongs to the first namespace that opens it.
INSERT INTO owner (single, namespace) VALUES (1, ?);

-- name: hand_over
-- A restored store belongs to the namespace that was restored with it.
INSERT OR REPLACE INTO owner (single, namespace) VALUES (1, ?);

-- name: last_id
-- The highest id in use. The counter continues from there.
SELECT max(coalesce((SELECT max(id) FROM message), 0), coalesce((SELECT max(id) FROM body), 0),
           coalesce((SELECT max(value) FROM removal, json_each(removal.ids)), 0));

-- name: partitions
-- The partitions in this store, without those that have been dropped.
SELECT key, entity, number FROM partition WHERE entity IS NOT NULL ORDER BY key;

-- name: epochs
-- The claim under which each of them can be changed.
SELECT key, epoch FROM partition WHERE entity IS NOT NULL;

-- name: create_partition
-- An existing partition stays as it is.
INSERT INTO partition (entity, number, next_sequence) VALUES (?, ?, ?)
ON CONFLICT (entity, number) DO NOTHING;

-- name: partitions_of
-- The partitions of one entity.
SELECT key, entity, number FROM partition WHERE entity = ? ORDER BY number;

-- name: drop_partitions
-- The entity is gone as soon as this is durable; `clear_bodies` and the following statements sweep later.
UPDATE partition SET entity = NULL, number = NULL WHERE entity = ?;

-- name: discard
-- The same for some partitions, by their keys.
UPDATE partition SET entity = NULL, number = NULL
 WHERE key IN (SELECT value FROM json_each(?)) AND entity IS NOT NULL
RETURNING key;

-- name: dropped_partitions
-- Dropped, and not swept yet.
SELECT key FROM partition WHERE entity IS NULL ORDER BY key;

-- name: clear_bodies
-- Remove the payloads of a dropped partition's next few messages, except those that other partitions share.
DELETE FROM body
 WHERE id IN (SELECT body FROM message WHERE partition = ?1 ORDER BY id LIMIT ?2)
   AND NOT EXISTS (SELECT 1 FROM message
                    WHERE message.body = body.id AND message.origin IS NOT NULL AND partition <> ?1);

-- name: clear_messages
-- Remove those messages.
DELETE FROM message WHERE id IN (SELECT id FROM message WHERE partition = ? ORDER BY id LIMIT ?);

-- name: clear_identities
-- Remove some of its digests.
DELETE FROM identity
 WHERE (partition, accepted_at, digest) IN (
       SELECT partition, accepted_at, digest FROM identity WHERE partition = ? LIMIT ?);

-- name: clear_sessions
-- Remove some of its session states.
DELETE FROM session WHERE id IN (SELECT id FROM session WHERE partition = ? LIMIT ?);

-- name: clear_transfers
-- Remove its marks: one for each source, so few.
DELETE FROM transfer WHERE partition = ?;

-- name: clear_partition
-- Remove the dropped partition, once it is empty.
DELETE FROM partition
 WHERE key = ?1 AND entity IS NULL AND NOT EXISTS (SELECT 1 FROM message WHERE partition = ?1)
   AND NOT EXISTS (SELECT 1 FROM identity WHERE partition = ?1)
   AND NOT EXISTS (SELECT 1 FROM session WHERE partition = ?1);

-- name: next_sequence
-- A partition's counter.
SELECT next_sequence FROM partition WHERE key = ? AND entity IS NOT NULL;

-- name: load_page
-- Some of a partition's messages, from an id upwards, as one JSON array: one step, however many rows. Nearly all
-- messages are active, in the main sub-queue and never delivered: of these, only what differs.
SELECT json_group_array(
           CASE WHEN state OR subqueue OR delivery_count OR amendment IS NOT NULL OR origin IS NOT NULL
                THEN json_array(id, sequence, enqueued_at, expires_at, size, session_id,
                                state, subqueue, delivery_count, amendment, origin, hops, body)
                WHEN session_id IS NOT NULL
                THEN json_array(id, sequence, enqueued_at, expires_at, size, session_id)
                ELSE json_array(id, sequence, enqueued_at, expires_at, size) END)
  FROM (SELECT * FROM message WHERE partition = ? AND id > ? ORDER BY id LIMIT ?);

-- name: read
-- Payloads end to end, with their ids and lengths in the same order: one step, however many rows.
SELECT json_group_array(id), json_group_array(size), CAST(group_concat(payload, '') AS BLOB)
  FROM (SELECT id, length(payload) AS size, payload FROM body
         WHERE id IN (SELECT value FROM json_each(?)));
