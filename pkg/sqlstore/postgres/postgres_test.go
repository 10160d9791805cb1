package postgres_test

import (
	"os"
	"testing"

	"github.com/kubase/kubase/pkg/sqlstore"
	"github.com/kubase/kubase/pkg/sqlstore/postgres"
	"github.com/kubase/kubase/pkg/sqlstore/storetest"
	"github.com/kubase/kubase/test/postgrestest"
)

func TestMain(m *testing.M) { os.Exit(postgrestest.Run(m)) }

// fresh makes an empty schema.
func fresh(t *testing.T) storetest.Opener { return opener(postgrestest.Schema(t)) }

func opener(dsn string) storetest.Opener {
	return func(t *testing.T) sqlstore.Engine {
		t.Helper()
		engine, err := postgres.Open(t.Context(), dsn, postgres.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return engine
	}
}

func TestStore(t *testing.T) { storetest.Run(t, fresh) }

func TestRandomHistory(t *testing.T) { storetest.RunRandom(t, fresh) }
