-- +goose Up

-- Nothing to do: the first row of a table takes no page of its own here.
SELECT 1;
