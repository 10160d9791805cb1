-- +goose Up

-- Users, roles and whether authentication is on, as etcd keeps them: rows of its buckets.
CREATE TABLE auth (
    bucket text  NOT NULL,
    key    bytea NOT NULL,
    value  bytea NOT NULL,
    PRIMARY KEY (bucket, key)
);

-- One more with each change of the table auth: every read and write sees whether what a server knows of it is still so.
ALTER TABLE meta ADD COLUMN auth_generation bigint NOT NULL DEFAULT 1;
