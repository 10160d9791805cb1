package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"

	"github.com/mattn/go-sqlite3"
)

// conn is one connection with its prepared statements, used by one goroutine at a time. The driver's own interface serves better
// than database/sql here: one connection is the writer, and a read is a few microseconds.
type conn struct {
	c        *sqlite3.SQLiteConn
	stmts    map[string]*statement
	versions *versions
	writes   bool // sees what is not yet committed
}

type statement struct {
	driver.Stmt
	row []driver.Value // scratch
}

func open(dsn string, pragmas []string) (*conn, error) {
	dc, err := (&sqlite3.SQLiteDriver{}).Open(dsn)
	if err != nil {
		return nil, wrap(err)
	}
	c := &conn{c: dc.(*sqlite3.SQLiteConn), stmts: map[string]*statement{}}
	for _, pragma := range pragmas {
		if _, err := c.c.Exec(pragma, nil); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", pragma, wrap(err)), c.close())
		}
	}
	return c, nil
}

func (c *conn) close() error {
	var errs []error
	for _, s := range c.stmts {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, c.c.Close())...)
}

func (c *conn) prepare(text string) (*statement, error) {
	if s, ok := c.stmts[text]; ok {
		return s, nil
	}
	stmt, err := c.c.Prepare(text)
	if err != nil {
		return nil, err
	}
	s := &statement{Stmt: stmt}
	c.stmts[text] = s
	return s, nil
}

// query calls scan for each row. The row's slice is used again for the next one; the bytes in it are not.
func (c *conn) query(ctx context.Context, text string, scan func(row []driver.Value) error, args ...driver.Value) (err error) {
	s, err := c.prepare(text)
	if err != nil {
		return wrap(err)
	}
	rows, err := s.Stmt.(driver.StmtQueryContext).QueryContext(ctx, named(args))
	if err != nil {
		return wrap(err)
	}
	defer func() { err = errors.Join(err, wrap(rows.Close())) }()
	if s.row == nil {
		s.row = make([]driver.Value, len(rows.Columns()))
	}
	for {
		switch err := rows.Next(s.row); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return wrap(err)
		}
		if err := scan(s.row); err != nil {
			return err
		}
	}
}

func (c *conn) exec(ctx context.Context, text string, args ...driver.Value) (int64, error) {
	s, err := c.prepare(text)
	if err != nil {
		return 0, wrap(err)
	}
	res, err := s.Stmt.(driver.StmtExecContext).ExecContext(ctx, named(args))
	if err != nil {
		return 0, wrap(err)
	}
	return res.RowsAffected()
}

// number reads one integer.
func (c *conn) number(ctx context.Context, text string, args ...driver.Value) (n int64, found bool, err error) {
	err = c.query(ctx, text, func(row []driver.Value) error {
		n, found = row[0].(int64), true
		return nil
	}, args...)
	return n, found, err
}

// rollback ends a transaction, if one is open. After some errors SQLite has rolled back by itself.
func (c *conn) rollback() error {
	if c.c.AutoCommit() {
		return nil
	}
	_, err := c.exec(context.Background(), rollback)
	return err
}

func named(args []driver.Value) []driver.NamedValue {
	values := make([]driver.NamedValue, len(args))
	for i, a := range args {
		if b, ok := a.([]byte); ok && b == nil {
			a = []byte{} // an empty value, not NULL
		}
		values[i] = driver.NamedValue{Ordinal: i + 1, Value: a}
	}
	return values
}
