-- +goose Up

-- One row: where the store stands.
CREATE TABLE meta (
    id               INTEGER PRIMARY KEY CHECK (id = 1),
    cluster_id       INTEGER NOT NULL,
    current_revision INTEGER NOT NULL,
    compact_revision INTEGER NOT NULL
);
INSERT INTO meta (id, cluster_id, current_revision, compact_revision)
VALUES (1, (random() & 9223372036854775807) | 1, 1, 0);

-- History, append-only. id is the place of a change: mod revision * 2^20 + sub.
CREATE TABLE revisions (
    id              INTEGER PRIMARY KEY,
    key             BLOB    NOT NULL,
    value           BLOB    NOT NULL,
    create_revision INTEGER NOT NULL,
    version         INTEGER NOT NULL, -- 0: a tombstone
    lease           INTEGER NOT NULL,
    previous_id     INTEGER NOT NULL  -- the live version that this change replaced; 0: there was none
);
CREATE INDEX revisions_key ON revisions (key, id, previous_id);

-- Current state: one narrow row a live key, pointing to its version in history.
CREATE TABLE keys (
    key             BLOB    PRIMARY KEY,
    id              INTEGER NOT NULL,
    create_revision INTEGER NOT NULL,
    version         INTEGER NOT NULL,
    lease           INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX keys_lease ON keys (lease, key) WHERE lease <> 0;

CREATE TABLE leases (
    id         INTEGER PRIMARY KEY,
    ttl        INTEGER NOT NULL, -- seconds
    keepalives INTEGER NOT NULL
);

-- One row: up to which revision dead history is deleted.
CREATE TABLE compaction (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    reached INTEGER NOT NULL
);
INSERT INTO compaction (id, reached) VALUES (1, 0);
