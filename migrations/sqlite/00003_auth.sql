-- +goose Up

-- Users, roles and whether authentication is on, as etcd keeps them: rows of its buckets.
CREATE TABLE auth (
    bucket TEXT NOT NULL,
    key    BLOB NOT NULL,
    value  BLOB NOT NULL,
    PRIMARY KEY (bucket, key)
) WITHOUT ROWID;

-- One more with each change of the table auth: every read and write sees whether what a server knows of it is still so.
ALTER TABLE meta ADD COLUMN auth_generation INTEGER NOT NULL DEFAULT 1;
