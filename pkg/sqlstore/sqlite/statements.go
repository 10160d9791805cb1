package sqlite

import "github.com/kubase/kubase/pkg/sqlstore"

// Every statement of this engine. A place in history is one number, id = mod revision * 2^20 + sub. A range is [?1, ?2); the
// variants named From have no upper end. In the variants named At, ?3 is the first id after the revision to be read: a key's
// version at that revision is its live one if it is older than ?3, else the one that the key's only change at or after ?3 that
// replaced a version older than ?3 points to.
//
// Where SQLite would have the value of a parameter to choose a plan by, after an = and in a LIMIT, the parameter is written +?N:
// otherwise SQLite compiles the statement anew each time that it is run.
const (
	selectMeta = `SELECT cluster_id, ` + currentRevision + `, compact_revision, auth_generation FROM meta`

	// That of the newest change in history, unless compaction has deleted it, a deletion: compaction leaves its revision in meta. So a write
	// does not touch the page of meta, a quarter of what it would write.
	currentRevision = `max(revision_floor, coalesce((SELECT max(id) FROM revisions), 0) >> 20)`

	selectKey     = `SELECT id FROM keys WHERE key = +?1`
	selectVersion = `SELECT key, id, create_revision, version, lease, value FROM revisions WHERE id = +?1`

	// The newest state of one key and where the store stands, one statement and so one snapshot.
	selectPoint = `
SELECT cluster_id, ` + currentRevision + `, compact_revision, auth_generation, k.id
FROM meta m LEFT JOIN keys k ON k.key = +?1`

	rangeVersions     = `SELECT id FROM keys WHERE key >= ?1 AND key < ?2 ORDER BY key LIMIT +?3`
	rangeVersionsFrom = `SELECT id FROM keys WHERE key >= ?1 ORDER BY key LIMIT +?2`

	rangeKeys = `
SELECT key, id, create_revision, version, lease, NULL
FROM keys WHERE key >= ?1 AND key < ?2 ORDER BY key LIMIT +?3`
	rangeKeysFrom = `
SELECT key, id, create_revision, version, lease, NULL
FROM keys WHERE key >= ?1 ORDER BY key LIMIT +?2`

	countKeys     = `SELECT count(*) FROM keys WHERE key >= ?1 AND key < ?2`
	countKeysFrom = `SELECT count(*) FROM keys WHERE key >= ?1`

	rangeVersionsAt = `
SELECT id, key FROM keys WHERE key >= ?1 AND key < ?2 AND id < ?3
UNION ALL
SELECT previous_id, key FROM revisions INDEXED BY revisions_key
WHERE key >= ?1 AND key < ?2 AND id >= ?3 AND previous_id < ?3 AND previous_id > 0
ORDER BY 2 LIMIT +?4`
	rangeVersionsAtFrom = `
SELECT id, key FROM keys WHERE key >= ?1 AND id < ?2
UNION ALL
SELECT previous_id, key FROM revisions INDEXED BY revisions_key
WHERE key >= ?1 AND id >= ?2 AND previous_id < ?2 AND previous_id > 0
ORDER BY 2 LIMIT +?3`

	rangeKeysAt = `
SELECT k.key, k.id, k.create_revision, k.version, k.lease, NULL
FROM keys k WHERE k.key >= ?1 AND k.key < ?2 AND k.id < ?3
UNION ALL
SELECT n.key, p.id, p.create_revision, p.version, p.lease, NULL
FROM revisions n INDEXED BY revisions_key JOIN revisions p ON p.id = n.previous_id
WHERE n.key >= ?1 AND n.key < ?2 AND n.id >= ?3 AND n.previous_id < ?3 AND n.previous_id > 0
ORDER BY 1 LIMIT +?4`
	rangeKeysAtFrom = `
SELECT k.key, k.id, k.create_revision, k.version, k.lease, NULL
FROM keys k WHERE k.key >= ?1 AND k.id < ?2
UNION ALL
SELECT n.key, p.id, p.create_revision, p.version, p.lease, NULL
FROM revisions n INDEXED BY revisions_key JOIN revisions p ON p.id = n.previous_id
WHERE n.key >= ?1 AND n.id >= ?2 AND n.previous_id < ?2 AND n.previous_id > 0
ORDER BY 1 LIMIT +?3`

	countKeysAt = `
SELECT (SELECT count(*) FROM keys WHERE key >= ?1 AND key < ?2 AND id < ?3)
     + (SELECT count(*) FROM revisions INDEXED BY revisions_key
        WHERE key >= ?1 AND key < ?2 AND id >= ?3 AND previous_id < ?3 AND previous_id > 0)`
	countKeysAtFrom = `
SELECT (SELECT count(*) FROM keys WHERE key >= ?1 AND id < ?2)
     + (SELECT count(*) FROM revisions INDEXED BY revisions_key
        WHERE key >= ?1 AND id >= ?2 AND previous_id < ?2 AND previous_id > 0)`

	// The + keeps the planner from the index on key: history is read in the order of its ids.
	selectEvents = `
SELECT n.key, n.id, n.create_revision, n.version, n.lease, n.value,
       p.id, p.create_revision, p.version, p.lease, p.value
FROM revisions n LEFT JOIN revisions p ON p.id = n.previous_id
WHERE n.id >= ?3 AND n.id < ?4 AND +n.key >= ?1 AND +n.key < ?2 ORDER BY n.id LIMIT +?5`
	selectEventsFrom = `
SELECT n.key, n.id, n.create_revision, n.version, n.lease, n.value,
       p.id, p.create_revision, p.version, p.lease, p.value
FROM revisions n LEFT JOIN revisions p ON p.id = n.previous_id
WHERE n.id >= ?2 AND n.id < ?3 AND +n.key >= ?1 ORDER BY n.id LIMIT +?4`

	selectHistory = `
SELECT key, id, create_revision, version, lease, value, previous_id FROM revisions ORDER BY id`

	// Versions before ?2 that are live at the revision before ?3, and tombstones from ?1 on, which is the revision before ?2.
	selectKept = `
SELECT key, id, create_revision, version, lease, value FROM revisions r
WHERE id < ?2 AND (version > 0 OR id >= ?1)
  AND NOT EXISTS (SELECT 1 FROM revisions n INDEXED BY revisions_key WHERE n.key = r.key AND n.id > r.id AND n.id < ?3)
ORDER BY id`
	selectVersions = `
SELECT key, id, create_revision, version, lease, value FROM revisions WHERE id >= ?1 AND id < ?2 ORDER BY id`

	insertRevision = `
INSERT INTO revisions (id, key, value, create_revision, version, lease, previous_id)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)`
	upsertKey = `
INSERT INTO keys (key, id, create_revision, version, lease) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (key) DO UPDATE
SET id = excluded.id, create_revision = excluded.create_revision, version = excluded.version, lease = excluded.lease`
	deleteKey  = `DELETE FROM keys WHERE key = +?1`
	updateMeta = `UPDATE meta SET revision_floor = ?1, compact_revision = ?2, auth_generation = ?3`

	selectLease  = `SELECT id, ttl, keepalives FROM leases WHERE id = +?1`
	selectLeases = `SELECT id, ttl, keepalives FROM leases ORDER BY id`
	upsertLease  = `
INSERT INTO leases (id, ttl, keepalives) VALUES (?1, ?2, ?3)
ON CONFLICT (id) DO UPDATE SET ttl = excluded.ttl, keepalives = excluded.keepalives`
	deleteLease     = `DELETE FROM leases WHERE id = +?1`
	selectLeaseKeys = `SELECT key FROM keys WHERE lease = +?1 AND lease <> 0 ORDER BY key`

	selectAlarms = `SELECT member, kind FROM alarms ORDER BY member, kind`
	insertAlarm  = `INSERT INTO alarms (member, kind) VALUES (?1, ?2) ON CONFLICT DO NOTHING`
	deleteAlarm  = `DELETE FROM alarms WHERE member = +?1 AND kind = +?2`

	selectAuth = `SELECT bucket, key, value FROM auth ORDER BY bucket, key`
	upsertAuth = `
INSERT INTO auth (bucket, key, value) VALUES (?1, ?2, ?3)
ON CONFLICT (bucket, key) DO UPDATE SET value = excluded.value`
	deleteAuth = `DELETE FROM auth WHERE bucket = +?1 AND key = +?2`

	selectReached = `SELECT reached FROM compaction`
	// The id of the last row of a slice of ?3 rows.
	selectSliceEnd = `SELECT id FROM revisions WHERE id >= ?1 AND id < ?2 ORDER BY id LIMIT 1 OFFSET ?3 - 1`
	deleteReplaced = `
DELETE FROM revisions WHERE id IN
(SELECT previous_id FROM revisions WHERE id >= ?1 AND id < ?2 AND previous_id > 0 AND previous_id < ?3)`
	deleteTombstones = `DELETE FROM revisions WHERE id >= ?1 AND id < ?2 AND version = 0`
	// Up to which revision history is deleted, and what the compaction at ?2, which this slice began at ?3 if it is a new one, has come to
	// at ?4.
	updateReached = `
UPDATE compaction SET reached = ?1, revision = ?2, began_at = iif(revision = ?2, began_at, ?3), ended_at = ?4`
	selectCompaction = `SELECT reached, revision, began_at, ended_at FROM compaction`

	selectEngineVersion = `SELECT sqlite_version()`

	pageSize  = `PRAGMA page_size`
	pageCount = `PRAGMA page_count`
	freePages = `PRAGMA freelist_count`

	// A slice of 1 MiB. A pragma takes no parameters.
	incrementalVacuum = `PRAGMA incremental_vacuum(256)`
	// Copies the WAL into the file as far as no reader needs it, and cuts the file.
	checkpoint = `PRAGMA wal_checkpoint(PASSIVE)`

	begin          = `BEGIN`
	beginImmediate = `BEGIN IMMEDIATE`
	commit         = `COMMIT`
	rollback       = `ROLLBACK`
)

// The statements for the forms of a range: the ids of versions, or all but their values.
var (
	rangeStatements = [sqlstore.Forms]string{
		0:                                     rangeVersions,
		sqlstore.FormFrom:                     rangeVersionsFrom,
		sqlstore.FormAt:                       rangeVersionsAt,
		sqlstore.FormAt | sqlstore.FormFrom:   rangeVersionsAtFrom,
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
