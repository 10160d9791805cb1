-- +goose Up

-- The last compaction: up to which revision, and from when to when history was deleted, in microseconds since 1970; 0: none yet.
ALTER TABLE compaction ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
ALTER TABLE compaction ADD COLUMN began_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE compaction ADD COLUMN ended_at INTEGER NOT NULL DEFAULT 0;

-- The store stands at the newest change in history, or here, if compaction has deleted that: a write leaves this row as it is.
ALTER TABLE meta RENAME COLUMN current_revision TO revision_floor;
