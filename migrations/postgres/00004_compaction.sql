-- +goose Up

-- The last compaction: up to which revision (0: none yet), and from when to when history was deleted.
ALTER TABLE compaction ADD COLUMN revision bigint NOT NULL DEFAULT 0;
ALTER TABLE compaction ADD COLUMN began_at timestamptz NOT NULL DEFAULT 'epoch';
ALTER TABLE compaction ADD COLUMN ended_at timestamptz NOT NULL DEFAULT 'epoch';
