-- +goose Up

-- One row: where the store stands. Its row lock is the write order.
CREATE TABLE meta (
    id               smallint PRIMARY KEY CHECK (id = 1),
    cluster_id       bigint NOT NULL,
    current_revision bigint NOT NULL,
    compact_revision bigint NOT NULL
) WITH (fillfactor = 10);
INSERT INTO meta (id, cluster_id, current_revision, compact_revision)
VALUES (1, ('x' || left(md5(gen_random_uuid()::text), 15))::bit(60)::bigint | 1, 1, 0);

-- History, append-only.
CREATE TABLE revisions (
    mod_revision      bigint  NOT NULL,
    sub               integer NOT NULL,
    key               bytea   NOT NULL,
    value             bytea   NOT NULL,
    create_revision   bigint  NOT NULL,
    version           bigint  NOT NULL, -- 0: a tombstone
    lease             bigint  NOT NULL,
    previous_revision bigint  NOT NULL, -- place of the live version that this change replaced; 0: there was none
    previous_sub      integer NOT NULL,
    PRIMARY KEY (mod_revision, sub)
);
CREATE INDEX revisions_key ON revisions (key, mod_revision);

-- Current state: one narrow row a live key, pointing to its version in history.
CREATE TABLE keys (
    key             bytea   PRIMARY KEY,
    mod_revision    bigint  NOT NULL,
    sub             integer NOT NULL,
    create_revision bigint  NOT NULL,
    version         bigint  NOT NULL,
    lease           bigint  NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX keys_lease ON keys (lease, key) WHERE lease <> 0;

CREATE TABLE leases (
    id         bigint PRIMARY KEY,
    ttl        bigint NOT NULL, -- seconds
    keepalives bigint NOT NULL
) WITH (fillfactor = 70);

-- One row: up to which revision dead history is deleted.
CREATE TABLE compaction (
    id      smallint PRIMARY KEY CHECK (id = 1),
    reached bigint NOT NULL
) WITH (fillfactor = 10);
INSERT INTO compaction (id, reached) VALUES (1, 0);

-- One row a server process: the number of its last committed batch, by which it learns the outcome of a COMMIT whose connection
-- was lost. Rows of processes long gone are removed.
CREATE TABLE servers (
    id         uuid PRIMARY KEY,
    last_batch bigint NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 10);

-- Updates of the small tables touch no index and reuse their pages; a vacuum that comes only after a fifth of a big table has changed
-- comes too late.
ALTER TABLE keys SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
ALTER TABLE revisions SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02);
