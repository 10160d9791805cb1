// Package sqlstore is a revisioned key-value store with etcd's semantics on a SQL database.
//
// It holds the model: how reads, Txns, watches, leases and compaction behave. It holds no SQL; an [Engine] (packages
// sqlite and postgres) holds whole SQL statements and no semantics.
//
// Invariants, cited as I1..I9 in code and tests:
//
//	I1 Writes are serialised; commit order is revision order; a revision is one Txn; failed or no-op Txns take no revision.
//	I2 If revision n is readable, every revision <= n is readable or compacted. No gaps, no filler rows.
//	I3 All changes of one Txn share the mod revision and differ in sub, in request order.
//	I4 A read sees one snapshot: rows, count, header revision and compact revision belong together.
//	I5 The compact revision is stored before any row is deleted. Compacting at R keeps, for every key live at R, its newest
//	   version <= R, so history at R and the previous value of every later event stay readable.
//	I6 Keys and values are bytes, ordered bytewise in every engine, whatever the database's collation.
//	I7 A notification is a hint; correctness rests on reading the events after the last revision seen.
//	I8 A watcher gets every event of its range exactly once, in revision order, one revision never split across two
//	   batches. Progress at R is reported only after every event <= R was handed out.
//	I9 An acknowledged write survives kill -9 and power loss.
package sqlstore
