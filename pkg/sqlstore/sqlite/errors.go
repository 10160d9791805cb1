package sqlite

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/mattn/go-sqlite3"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// wrap marks a driver's error with the sentinel that says what it means to the store.
func wrap(err error) error {
	var e sqlite3.Error
	if !errors.As(err, &e) {
		return err
	}
	switch {
	case e.Code == sqlite3.ErrFull, e.SystemErrno == syscall.ENOSPC, e.SystemErrno == syscall.EDQUOT, e.SystemErrno == syscall.EFBIG:
		return fmt.Errorf("%w: %w", sqlstore.ErrNoSpace, err)
	case e.Code == sqlite3.ErrCorrupt, e.Code == sqlite3.ErrNotADB:
		return fmt.Errorf("the file is damaged, restore it from a backup: %w", err)
	case e.Code == sqlite3.ErrBusy, e.Code == sqlite3.ErrLocked, e.Code == sqlite3.ErrIoErr, e.Code == sqlite3.ErrCantOpen:
		return fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, err)
	}
	return err
}
