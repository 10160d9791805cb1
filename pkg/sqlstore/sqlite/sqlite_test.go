package sqlite_test

import (
	"path/filepath"
	"testing"

	"github.com/kubase/kubase/pkg/sqlstore"
	"github.com/kubase/kubase/pkg/sqlstore/sqlite"
	"github.com/kubase/kubase/pkg/sqlstore/storetest"
)

// fresh makes an empty database.
func fresh(t *testing.T) storetest.Opener { return freshWith(t, sqlite.Options{}) }

// forgetful makes one that has every version from the file.
func forgetful(t *testing.T) storetest.Opener { return freshWith(t, sqlite.Options{CacheBytes: 1}) }

func freshWith(t *testing.T, options sqlite.Options) storetest.Opener {
	path := filepath.Join(t.TempDir(), "kubase.db")
	return func(t *testing.T) sqlstore.Engine {
		t.Helper()
		engine, err := sqlite.Open(t.Context(), path, options)
		if err != nil {
			t.Fatal(err)
		}
		return engine
	}
}

func TestStore(t *testing.T) { storetest.Run(t, fresh) }

func TestRandomHistory(t *testing.T) { storetest.RunRandom(t, fresh) }

func TestRandomHistoryWithoutMemory(t *testing.T) { storetest.RunRandom(t, forgetful) }
