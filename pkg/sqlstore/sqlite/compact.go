package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// DeleteHistory implements sqlstore.Engine.
func (e *Engine) DeleteHistory(ctx context.Context, limit int) (done bool, err error) {
	deleted, spacious := false, false
	if err := e.read(ctx, func(c *conn) error {
		reached, compact, err := c.compaction(ctx)
		if err != nil {
			return err
		}
		deleted = reached >= compact
		spacious, err = c.spacious(ctx)
		return err
	}); err != nil {
		return false, err
	}
	if deleted {
		if !spacious {
			return true, nil
		}
		return false, e.releaseSpace(ctx)
	}
	c, err := e.acquireWriter(ctx)
	if err != nil {
		return false, err
	}
	defer func() {
		err = errors.Join(err, c.rollback())
		e.writer <- c
	}()
	began := time.Now().UnixMicro()
	reached, compact, err := c.compaction(ctx)
	if err != nil {
		return false, err
	}
	through := compact
	last, found, err := c.number(ctx, selectSliceEnd, firstID(reached+1), firstID(compact+1), int64(limit))
	if err != nil {
		return false, err
	}
	if found {
		through = sqlstore.Revision(last >> subBits)
	}
	// Changes at the compact revision stay for those who watch from there, and go with the next compaction: so this one begins
	// with the revision that the last one reached.
	if _, err := c.exec(ctx, deleteReplaced, firstID(reached), firstID(through+1), firstID(compact)); err != nil {
		return false, err
	}
	if _, err := c.exec(ctx, deleteTombstones, firstID(reached), firstID(min(through+1, compact))); err != nil {
		return false, err
	}
	if _, err := c.exec(ctx, updateReached, int64(through), int64(compact), began, time.Now().UnixMicro()); err != nil {
		return false, err
	}
	if _, err := c.exec(ctx, commit); err != nil {
		return false, err
	}
	return false, nil // the next call sees whether that was all
}

func (c *conn) compaction(ctx context.Context) (reached, compact sqlstore.Revision, err error) {
	var meta sqlstore.Meta
	if err := c.query(ctx, selectMeta, scanMeta(&meta)); err != nil {
		return 0, 0, err
	}
	n, _, err := c.number(ctx, selectReached)
	return sqlstore.Revision(n), meta.CompactRevision, err
}

// Free pages that are kept for the next writes: at least so many, and a part of the file. Giving them back only to take them again
// would cost more than the space is worth.
const (
	keptPages    = 2048 // 8 MiB
	keptFraction = 5    // a fifth
)

func (c *conn) spacious(ctx context.Context) (bool, error) {
	pages, _, err := c.number(ctx, pageCount)
	if err != nil {
		return false, err
	}
	free, _, err := c.number(ctx, freePages)
	return free > max(keptPages, pages/keptFraction), err
}

// releaseSpace moves pages from the end of the file to free places and cuts the file, a slice at a time.
func (e *Engine) releaseSpace(ctx context.Context) (err error) {
	c, err := e.acquireWriter(ctx)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, c.rollback())
		e.writer <- c
	}()
	// A row for each page.
	if err := c.query(ctx, incrementalVacuum, func([]driver.Value) error { return nil }); err != nil {
		return err
	}
	_, err = c.exec(ctx, commit)
	return err
}
