-- +goose Up

-- What keeps every server from doing some of its work until somebody has seen to it.
CREATE TABLE alarms (
    member bigint   NOT NULL, -- the server that the alarm is about
    kind   smallint NOT NULL, -- etcd's number
    PRIMARY KEY (member, kind)
);
