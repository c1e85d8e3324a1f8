-- The statements of the catalog in SQLite.

-- name: namespace
-- The namespace's settings.
SELECT description FROM namespace;

-- name: describe_namespace
-- Set or replace the namespace's settings.
INSERT INTO namespace (id, description) VALUES (1, ?)
ON CONFLICT (id) DO UPDATE SET description = excluded.description;

-- name: entities
-- Everything that exists.
SELECT path, kind, description, partition_count, placement, created_at, updated_at, generation
  FROM entity ORDER BY path;

-- name: add
-- Nothing happens if the path is taken; the caller sees that by the row count.
INSERT INTO entity (kind, description, partition_count, placement, created_at, updated_at, generation, path)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (path) DO NOTHING;

-- name: replace
-- The path keeps the spelling it was created with.
UPDATE entity
   SET kind = ?, description = ?, partition_count = ?, placement = ?, created_at = ?, updated_at = ?,
       generation = ?
 WHERE path = ?;

-- name: remove
-- Remove one entity.
DELETE FROM entity WHERE path = ?;

-- name: count_commit
-- Part of every change.
UPDATE progress SET commits = ?;

-- name: last_commit
-- Its number.
SELECT commits FROM progress;
