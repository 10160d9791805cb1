-- +goose Up

-- What keeps every server from doing some of its work until somebody has seen to it.
CREATE TABLE alarms (
    member INTEGER NOT NULL, -- the server that the alarm is about
    kind   INTEGER NOT NULL, -- etcd's number
    PRIMARY KEY (member, kind)
) WITHOUT ROWID;
