package postgres

import "github.com/kubase/kubase/pkg/sqlstore"

// Every statement of this engine. A range is [$1, $2); the variants named From have no upper end. The variants named At read the
// state at a revision: a key's version there is its live one if that is not newer, else the one that the key's only later change
// that replaced a version not newer points to. A limit of NULL is no limit.
const (
	// Reads see one snapshot however many statements they send.
	beginRead = `BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY`
	// Each statement of the write transaction sees what was committed before it, once it has the lock on meta.
	beginWrite = `BEGIN ISOLATION LEVEL READ COMMITTED`
	commit     = `COMMIT`
	rollback   = `ROLLBACK`

	// Each statement has one good plan, by index and nested loop, whatever there is in the tables. It is made once for a connection, which
	// halves the time of the statement that loads a small batch's keys, and it follows no statistics: those of a new database speak of empty tables.
	// Compiling plans takes longer than running them.
	fixPlans = `
SELECT set_config(name, value, false) FROM (VALUES
    ('plan_cache_mode', 'force_generic_plan'), ('enable_seqscan', 'off'), ('enable_hashjoin', 'off'), ('enable_mergejoin', 'off'),
    ('jit', 'off')) AS settings (name, value)`

	selectMeta = `SELECT cluster_id, current_revision, compact_revision, auth_generation FROM meta`
	// A server that is cut off in the middle of a batch must not keep the lock on meta: the settings end its transaction.
	lockMeta = `
SELECT cluster_id, current_revision, compact_revision, auth_generation,
       set_config('statement_timeout', $1, true), set_config('idle_in_transaction_session_timeout', $1, true)
FROM meta FOR UPDATE`

	selectKeys = `
SELECT k.key, k.mod_revision, k.sub, k.create_revision, k.version, k.lease, r.value
FROM keys k JOIN revisions r ON r.mod_revision = k.mod_revision AND r.sub = k.sub
WHERE k.key = ANY ($1::bytea[])`

	// The newest state of one key and where the store stands, one statement and so one snapshot.
	selectPoint = `
SELECT m.cluster_id, m.current_revision, m.compact_revision, m.auth_generation,
       k.key, k.mod_revision, k.sub, k.create_revision, k.version, k.lease, r.value
FROM meta m LEFT JOIN keys k ON k.key = $1 LEFT JOIN revisions r ON r.mod_revision = k.mod_revision AND r.sub = k.sub`

	rangeValues = `
SELECT k.key, k.mod_revision, k.sub, k.create_revision, k.version, k.lease, r.value
FROM keys k JOIN revisions r ON r.mod_revision = k.mod_revision AND r.sub = k.sub
WHERE k.key >= $1 AND k.key < $2 ORDER BY k.key LIMIT $3`
	rangeValuesFrom = `
SELECT k.key, k.mod_revision, k.sub, k.create_revision, k.version, k.lease, r.value
FROM keys k JOIN revisions r ON r.mod_revision = k.mod_revision AND r.sub = k.sub
WHERE k.key >= $1 ORDER BY k.key LIMIT $2`

	rangeKeys = `
SELECT key, mod_revision, sub, create_revision, version, lease, NULL::bytea
FROM keys WHERE key >= $1 AND key < $2 ORDER BY key LIMIT $3`
	rangeKeysFrom = `
SELECT key, mod_revision, sub, create_revision, version, lease, NULL::bytea
FROM keys WHERE key >= $1 ORDER BY key LIMIT $2`

	countKeys     = `SELECT count(*) FROM keys WHERE key >= $1 AND key < $2`
	countKeysFrom = `SELECT count(*) FROM keys WHERE key >= $1`

	rangeValuesAt = `
(SELECT k.key, k.mod_revision, k.sub, k.create_revision, k.version, k.lease, r.value
 FROM keys k JOIN revisions r ON r.mod_revision = k.mod_revision AND r.sub = k.sub
 WHERE k.key >= $1 AND k.key < $2 AND k.mod_revision <= $3 ORDER BY k.key LIMIT $4)
UNION ALL
(SELECT n.key, p.mod_revision, p.sub, p.create_revision, p.version, p.lease, p.value
 FROM revisions n JOIN revisions p ON p.mod_revision = n.previous_revision AND p.sub = n.previous_sub
 WHERE n.key >= $1 AND n.key < $2 AND n.mod_revision > $3 AND n.previous_revision BETWEEN 1 AND $3 ORDER BY n.key LIMIT $4)
ORDER BY 1 LIMIT $4`
	rangeValuesAtFrom = `
(SELECT k.key, k.mod_revision, k.sub, k.create_revision, k.version, k.lease, r.value
 FROM keys k JOIN revisions r ON r.mod_revision = k.mod_revision AND r.sub = k.sub
 WHERE k.key >= $1 AND k.mod_revision <= $2 ORDER BY k.key LIMIT $3)
UNION ALL
(SELECT n.key, p.mod_revision, p.sub, p.create_revision, p.version, p.lease, p.value
 FROM revisions n JOIN revisions p ON p.mod_revision = n.previous_revision AND p.sub = n.previous_sub
 WHERE n.key >= $1 AND n.mod_revision > $2 AND n.previous_revision BETWEEN 1 AND $2 ORDER BY n.key LIMIT $3)
ORDER BY 1 LIMIT $3`

	rangeKeysAt = `
(SELECT key, mod_revision, sub, create_revision, version, lease, NULL::bytea
 FROM keys WHERE key >= $1 AND key < $2 AND mod_revision <= $3 ORDER BY key LIMIT $4)
UNION ALL
(SELECT n.key, p.mod_revision, p.sub, p.create_revision, p.version, p.lease, NULL::bytea
 FROM revisions n JOIN revisions p ON p.mod_revision = n.previous_revision AND p.sub = n.previous_sub
 WHERE n.key >= $1 AND n.key < $2 AND n.mod_revision > $3 AND n.previous_revision BETWEEN 1 AND $3 ORDER BY n.key LIMIT $4)
ORDER BY 1 LIMIT $4`
	rangeKeysAtFrom = `
(SELECT key, mod_revision, sub, create_revision, version, lease, NULL::bytea
 FROM keys WHERE key >= $1 AND mod_revision <= $2 ORDER BY key LIMIT $3)
UNION ALL
(SELECT n.key, p.mod_revision, p.sub, p.create_revision, p.version, p.lease, NULL::bytea
 FROM revisions n JOIN revisions p ON p.mod_revision = n.previous_revision AND p.sub = n.previous_sub
 WHERE n.key >= $1 AND n.mod_revision > $2 AND n.previous_revision BETWEEN 1 AND $2 ORDER BY n.key LIMIT $3)
ORDER BY 1 LIMIT $3`

	countKeysAt = `
SELECT (SELECT count(*) FROM keys WHERE key >= $1 AND key < $2 AND mod_revision <= $3)
     + (SELECT count(*) FROM revisions
        WHERE key >= $1 AND key < $2 AND mod_revision > $3 AND previous_revision BETWEEN 1 AND $3)`
	countKeysAtFrom = `
SELECT (SELECT count(*) FROM keys WHERE key >= $1 AND mod_revision <= $2)
     + (SELECT count(*) FROM revisions
        WHERE key >= $1 AND mod_revision > $2 AND previous_revision BETWEEN 1 AND $2)`

	selectEvents = `
SELECT n.key, n.mod_revision, n.sub, n.create_revision, n.version, n.lease, n.value,
       p.mod_revision, p.sub, p.create_revision, p.version, p.lease, p.value
FROM revisions n LEFT JOIN revisions p ON p.mod_revision = n.previous_revision AND p.sub = n.previous_sub
WHERE n.mod_revision >= $3 AND n.mod_revision <= $4 AND n.key >= $1 AND n.key < $2
ORDER BY n.mod_revision, n.sub LIMIT $5`
	selectEventsFrom = `
SELECT n.key, n.mod_revision, n.sub, n.create_revision, n.version, n.lease, n.value,
       p.mod_revision, p.sub, p.create_revision, p.version, p.lease, p.value
FROM revisions n LEFT JOIN revisions p ON p.mod_revision = n.previous_revision AND p.sub = n.previous_sub
WHERE n.mod_revision >= $2 AND n.mod_revision <= $3 AND n.key >= $1
ORDER BY n.mod_revision, n.sub LIMIT $4`

	selectHistory = `
SELECT key, mod_revision, sub, create_revision, version, lease, value, previous_revision, previous_sub
FROM revisions ORDER BY mod_revision, sub`

	// Versions up to revision $1 that are live at revision $2, and tombstones of revision $1.
	selectKept = `
SELECT key, mod_revision, sub, create_revision, version, lease, value FROM revisions r
WHERE mod_revision <= $1 AND (version > 0 OR mod_revision = $1)
  AND NOT EXISTS (SELECT FROM revisions n
                  WHERE n.key = r.key AND (n.mod_revision, n.sub) > (r.mod_revision, r.sub) AND n.mod_revision <= $2)
ORDER BY mod_revision, sub`
	selectVersions = `
SELECT key, mod_revision, sub, create_revision, version, lease, value FROM revisions
WHERE mod_revision > $1 AND mod_revision <= $2 ORDER BY mod_revision, sub`

	insertRevisions = `
INSERT INTO revisions (mod_revision, sub, key, value, create_revision, version, lease, previous_revision, previous_sub)
SELECT * FROM unnest($1::bigint[], $2::integer[], $3::bytea[], $4::bytea[], $5::bigint[], $6::bigint[], $7::bigint[],
                     $8::bigint[], $9::integer[])`
	upsertKeys = `
INSERT INTO keys (key, mod_revision, sub, create_revision, version, lease)
SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::integer[], $4::bigint[], $5::bigint[], $6::bigint[])
ON CONFLICT (key) DO UPDATE
SET mod_revision = excluded.mod_revision, sub = excluded.sub, create_revision = excluded.create_revision,
    version = excluded.version, lease = excluded.lease`
	deleteKeys = `DELETE FROM keys WHERE key = ANY ($1::bytea[])`
	// What ends every batch: where the store stands now, this server's mark by which it learns the outcome of a lost COMMIT, and
	// the notification of the other servers, which goes out with the commit. The channel is named after the schema, so that
	// stores in one database do not wake each other.
	finishBatch = `
WITH server AS (
    INSERT INTO servers (id, last_batch) VALUES ($4, $5)
    ON CONFLICT (id) DO UPDATE SET last_batch = excluded.last_batch, updated_at = now())
UPDATE meta SET current_revision = $1, compact_revision = $2, auth_generation = $3
RETURNING pg_notify('kubase.' || current_schema(), '')`

	endAbandoned = `
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND usename = current_user AND application_name = 'kubase' AND pid <> pg_backend_pid()
  AND wait_event = 'ClientRead' AND xact_start < clock_timestamp() - $1::interval
  AND pid IN (SELECT pid FROM pg_locks WHERE relation IN ('meta'::regclass, 'compaction'::regclass) AND mode = 'RowShareLock')`

	selectServer = `SELECT last_batch FROM servers WHERE id = $1`
	// A process that lives writes its row with each batch; one that has not for a day needs no outcome any more.
	deleteOldServers = `DELETE FROM servers WHERE updated_at < now() - interval '1 day'`

	listen = `DO $$ BEGIN EXECUTE format('LISTEN %I', 'kubase.' || current_schema()); END $$`

	selectLease  = `SELECT id, ttl, keepalives FROM leases WHERE id = $1`
	selectLeases = `SELECT id, ttl, keepalives FROM leases ORDER BY id`
	upsertLease  = `
INSERT INTO leases (id, ttl, keepalives) VALUES ($1, $2, $3)
ON CONFLICT (id) DO UPDATE SET ttl = excluded.ttl, keepalives = excluded.keepalives`
	deleteLease     = `DELETE FROM leases WHERE id = $1`
	selectLeaseKeys = `SELECT key FROM keys WHERE lease = $1 AND lease <> 0 ORDER BY key`

	selectAlarms = `SELECT member, kind FROM alarms WHERE kind <> 0 ORDER BY member, kind`
	insertAlarm  = `INSERT INTO alarms (member, kind) VALUES ($1, $2) ON CONFLICT DO NOTHING`
	deleteAlarm  = `DELETE FROM alarms WHERE member = $1 AND kind = $2 AND kind <> 0`

	selectAuth = `SELECT bucket, key, value FROM auth ORDER BY bucket COLLATE "C", key`
	upsertAuth = `
INSERT INTO auth (bucket, key, value) VALUES ($1, $2, $3)
ON CONFLICT (bucket, key) DO UPDATE SET value = excluded.value`
	deleteAuth = `DELETE FROM auth WHERE bucket = $1 AND key = $2`

	selectReached       = `SELECT reached FROM compaction`
	selectEngineVersion = `SHOW server_version`
	// With the settings of lockMeta, for the same reason.
	lockReached = `
SELECT reached, set_config('statement_timeout', $1, true), set_config('idle_in_transaction_session_timeout', $1, true)
FROM compaction FOR UPDATE`
	// The revision of the last row of a slice of $3 rows.
	selectSliceEnd = `
SELECT mod_revision FROM revisions WHERE mod_revision > $1 AND mod_revision <= $2
ORDER BY mod_revision, sub LIMIT 1 OFFSET $3::bigint - 1`
	deleteReplaced = `
DELETE FROM revisions USING revisions n
WHERE n.mod_revision >= $1 AND n.mod_revision <= $2 AND n.previous_revision > 0 AND n.previous_revision < $3
  AND revisions.mod_revision = n.previous_revision AND revisions.sub = n.previous_sub`
	deleteTombstones = `DELETE FROM revisions WHERE mod_revision >= $1 AND mod_revision <= $2 AND mod_revision < $3 AND version = 0`
	// Up to which revision history is deleted, and what the compaction at $2, which this slice began if it is a new one, has come to. A
	// server that knows of an older one only helps with the newest.
	updateReached = `
UPDATE compaction SET reached = $1, revision = greatest(revision, $2), began_at = CASE WHEN revision < $2 THEN now() ELSE began_at END,
    ended_at = clock_timestamp()`
	selectCompaction = `SELECT reached, revision, began_at, ended_at FROM compaction`
	// This server and those that have written within the last minute, as each API server does.
	countServers = `SELECT 1 + count(*) FROM servers WHERE id <> $1 AND updated_at > now() - interval '1 minute'`

	vacuum = `VACUUM meta, keys, revisions, leases, compaction, servers, alarms, auth`

	selectMaxConnections = `SELECT setting::integer FROM pg_settings WHERE name = 'max_connections'`

	// The size of our tables, and how many dead rows they have by the statistics that autovacuum goes by.
	selectSize = `
SELECT sum(pg_total_relation_size(c.oid))::bigint, sum(pg_stat_get_dead_tuples(c.oid))::bigint
FROM pg_class c WHERE c.relnamespace = current_schema()::regnamespace
  AND c.relname IN ('meta', 'keys', 'revisions', 'leases', 'compaction', 'servers', 'alarms', 'auth')`
	selectSchemaVersion = `SELECT max(version_id) FROM schema_migrations WHERE is_applied`
)

// The statements for the forms of a range.
var (
	rangeStatements = [sqlstore.Forms]string{
		0:                                     rangeValues,
		sqlstore.FormFrom:                     rangeValuesFrom,
		sqlstore.FormAt:                       rangeValuesAt,
		sqlstore.FormAt | sqlstore.FormFrom:   rangeValuesAtFrom,
		sqlstore.FormKeys:                     rangeKeys,
		sqlstore.FormKeys | sqlstore.FormFrom: rangeKeysFrom,
		sqlstore.FormKeys | sqlstore.FormAt:   rangeKeysAt,
		sqlstore.FormKeys | sqlstore.FormAt | sqlstore.FormFrom: rangeKeysAtFrom,
	}
	countStatements = [sqlstore.FormKeys]string{
		0:                                   countKeys,
		sqlstore.FormFrom:                   countKeysFrom,
		sqlstore.FormAt:                     countKeysAt,
		sqlstore.FormAt | sqlstore.FormFrom: countKeysAtFrom,
	}
)
