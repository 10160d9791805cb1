-- +goose Up

-- One alarm that is none, and is never deleted: so the table has a page already when the first real one comes, because the disk is full.
INSERT INTO alarms (member, kind) VALUES (0, 0);
