package migrations_test

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/mattn/go-sqlite3"

	"github.com/kubase/kubase/migrations"
	"github.com/kubase/kubase/test/postgrestest"
)

var update = flag.Bool("update", false, "write the schemas at head to testdata")

func TestMain(m *testing.M) { os.Exit(postgrestest.Run(m)) }

func openSQLite(t *testing.T) *sql.DB {
	return open(t, "sqlite3", "file:"+filepath.Join(t.TempDir(), "test.db"))
}

func openPostgres(t *testing.T) *sql.DB { return open(t, "pgx", postgrestest.Schema(t)) }

func open(t *testing.T, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// dialects are the kinds of database, with a query that shows a schema, one line a thing that it is made of.
var dialects = map[migrations.Dialect]struct {
	open   func(t *testing.T) *sql.DB
	schema string
}{
	migrations.SQLite:   {openSQLite, sqliteSchema},
	migrations.Postgres: {openPostgres, postgresSchema},
}

const sqliteSchema = `SELECT sql || ';' FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY type DESC, name`

const postgresSchema = `
SELECT line FROM (
	SELECT 1 AS part, table_name || '.' || lpad(ordinal_position::text, 2, '0') AS place,
		'column ' || table_name || '.' || column_name || ' ' || data_type ||
		CASE is_nullable WHEN 'NO' THEN ' NOT NULL' ELSE '' END || coalesce(' DEFAULT ' || column_default, '') AS line
	FROM information_schema.columns WHERE table_schema = current_schema()
	UNION ALL
	SELECT 2, conrelid::regclass::text || conname,
		'constraint ' || conname || ' on ' || conrelid::regclass || ' ' || pg_get_constraintdef(oid)
	FROM pg_constraint WHERE connamespace = current_schema()::regnamespace AND contype <> 'n' -- Postgres 18 lists NOT NULL too
	UNION ALL
	SELECT 3, indexname, replace(indexdef, current_schema() || '.', '')
	FROM pg_indexes WHERE schemaname = current_schema()
	UNION ALL
	SELECT 4, relname, 'settings of ' || relname || ' ' || array_to_string(reloptions, ', ')
	FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND reloptions IS NOT NULL
) lines ORDER BY part, place`

func up(t *testing.T, dialect migrations.Dialect, db *sql.DB) {
	t.Helper()
	if err := migrations.Up(t.Context(), dialect, db); err != nil {
		t.Fatal(err)
	}
}

func lines(t *testing.T, db *sql.DB, query string) string {
	t.Helper()
	rows, err := db.Query(query)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		all.WriteString(line + "\n")
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		t.Fatal(err)
	}
	return all.String()
}

func TestBothDialectsHaveTheSameNumbers(t *testing.T) {
	numbers := map[migrations.Dialect][]string{}
	for dialect := range dialects {
		files, err := filepath.Glob(string(dialect) + "/*.sql")
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v %v", dialect, files, err)
		}
		for _, file := range files {
			numbers[dialect] = append(numbers[dialect], filepath.Base(file))
		}
	}
	if !slices.Equal(numbers[migrations.SQLite], numbers[migrations.Postgres]) {
		t.Errorf("the migrations differ: %v", numbers)
	}
}

// TestSchemaAtHead compares the schema that all migrations make with testdata. Run with -update after adding one, and look at the
// difference.
func TestSchemaAtHead(t *testing.T) {
	for dialect, d := range dialects {
		t.Run(string(dialect), func(t *testing.T) {
			db := d.open(t)
			up(t, dialect, db)
			got := lines(t, db, d.schema)
			golden := filepath.Join("testdata", string(dialect)+".txt")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("the schema differs from %s; got:\n%s", golden, got)
			}
		})
	}
}

func TestSecondUpChangesNothing(t *testing.T) {
	for dialect, d := range dialects {
		t.Run(string(dialect), func(t *testing.T) {
			db := d.open(t)
			up(t, dialect, db)
			const state = `SELECT cluster_id || ' ' || compact_revision || ' ' || (SELECT count(*) FROM schema_migrations) FROM meta`
			before, schema := lines(t, db, state), lines(t, db, d.schema)
			up(t, dialect, db)
			if after := lines(t, db, state); after != before {
				t.Errorf("the state was %s and is %s", before, after)
			}
			if after := lines(t, db, d.schema); after != schema {
				t.Errorf("the schema is another: %s", after)
			}
		})
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	for dialect, d := range dialects {
		t.Run(string(dialect), func(t *testing.T) {
			db := d.open(t)
			up(t, dialect, db)
			known, err := migrations.Latest(dialect)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := db.Exec(`INSERT INTO schema_migrations (version_id, is_applied) VALUES ($1, $2)`, known+1, true); err != nil {
				t.Fatal(err)
			}
			before := lines(t, db, d.schema)
			var newer *migrations.NewerSchemaError
			if err := migrations.Up(context.Background(), dialect, db); !errors.As(err, &newer) ||
				*newer != (migrations.NewerSchemaError{Found: known + 1, Known: known}) {
				t.Errorf("the error is %v", err)
			}
			if after := lines(t, db, d.schema); after != before {
				t.Errorf("the schema was changed: %s", after)
			}
		})
	}
}
