package sqlstore

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// Options tunes a store. The zero value is good.
type Options struct {
	// ReadTimeout and WriteTimeout bound each statement, so that a hanging database is an error. Default 30 s and 10 s.
	ReadTimeout  time.Duration
	WriteTimeout time.Duration
	// RetryInterval is the pause before background work tries again. Default 1 s.
	RetryInterval time.Duration
	// PollInterval is how often a shared database is asked for revisions that no notification announced. Default 1 s.
	PollInterval time.Duration
	// MinLeaseTTL is the shortest TTL that is granted, in seconds. Default 2, which is etcd's with its default settings.
	MinLeaseTTL int64
	// RingBytes bounds the recent events kept in memory. Default 16 MiB.
	RingBytes int
	// Logger gets what background work has to say. Default slog.Default().
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.ReadTimeout == 0 {
		o.ReadTimeout = 30 * time.Second
	}
	if o.WriteTimeout == 0 {
		o.WriteTimeout = 10 * time.Second
	}
	if o.RetryInterval == 0 {
		o.RetryInterval = time.Second
	}
	if o.PollInterval == 0 {
		o.PollInterval = time.Second
	}
	if o.MinLeaseTTL == 0 {
		o.MinLeaseTTL = 2
	}
	if o.RingBytes == 0 {
		o.RingBytes = 16 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

// Store is the revisioned store on one database.
type Store struct {
	engine    Engine
	opts      Options
	log       *slog.Logger
	clusterID int64
	outage    outage

	queue         chan *request
	committerDone chan struct{}
	hub           *hub
	counts        *counts
	lessor        *lessor
	compactor     *compactor
	alarms        *alarms
	notifications *notifications // nil if the database is not shared

	ctx        context.Context // of all background work
	cancel     context.CancelFunc
	closing    chan struct{}
	closeOnce  sync.Once
	background sync.WaitGroup
}

// Open starts a store on an engine, which it owns from then on: Close closes it, and so does a failed Open.
func Open(ctx context.Context, engine Engine, opts Options) (*Store, error) {
	opts = opts.withDefaults()
	s := &Store{
		engine: engine, opts: opts, log: opts.Logger, outage: outage{log: opts.Logger},
		queue: make(chan *request, queueLength), committerDone: make(chan struct{}), closing: make(chan struct{}),
	}
	ctx, cancel := context.WithTimeout(ctx, opts.ReadTimeout)
	defer cancel()
	now, err := engine.Range(ctx, RangeQuery{Start: fromKey, Fields: NoFields})
	if err != nil {
		return nil, errors.Join(err, engine.Close())
	}
	s.clusterID = now.Meta.ClusterID
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.hub = newHub(s, now.Meta)
	s.counts = newCounts()
	s.lessor = newLessor(s)
	s.compactor = newCompactor(s)
	s.alarms = newAlarms(s)
	_, err = s.Alarms(ctx)
	if err = errors.Join(err, s.lessor.load(ctx)); err != nil {
		s.cancel()
		return nil, errors.Join(err, engine.Close())
	}
	if engine.Shared() {
		s.notifications = newNotifications(s)
		s.background.Go(func() { s.notifications.listenLoop(s.ctx) })
		s.background.Go(func() { s.notifications.pollLoop(s.ctx) })
	}
	go s.commitLoop()
	s.background.Go(func() { s.hub.refreshLoop(s.ctx) })
	s.background.Go(func() { s.hub.countLoop(s.ctx) })
	s.background.Go(func() { s.lessor.expireLoop(s.ctx) })
	s.background.Go(func() { s.compactor.loop(s.ctx) })
	s.background.Go(func() { s.alarms.loop(s.ctx) })
	return s, nil
}

// Close ends everything. Writes under way are finished or answered ErrClosed; reads must have ended.
func (s *Store) Close() error {
	var err error
	s.closeOnce.Do(func() {
		close(s.closing)
		<-s.committerDone
		s.cancel()
		s.background.Wait()
		err = s.engine.Close()
	})
	return err
}

// ClusterID is the identity of the database: a random number made with it.
func (s *Store) ClusterID() int64 { return s.clusterID }

// EngineName is sqlite or postgres.
func (s *Store) EngineName() string { return s.engine.Name() }

// Size is the size of the database and the part of it in use, in bytes.
func (s *Store) Size(ctx context.Context) (total, inUse int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.ReadTimeout)
	defer cancel()
	return s.engine.Size(ctx)
}

// Describe asks the database what it is and how it does.
func (s *Store) Describe(ctx context.Context) (Description, error) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.ReadTimeout)
	defer cancel()
	d, err := s.engine.Describe(ctx)
	if err == nil {
		s.hub.observe(d.Meta.CurrentRevision)
	}
	return d, err
}

// Revision is the newest revision that this process has seen; it never goes back.
func (s *Store) Revision() Revision { return Revision(s.hub.observed.Load()) }

// CurrentRevision reads the current revision from the database.
func (s *Store) CurrentRevision(ctx context.Context) (Revision, error) {
	res, err := s.Range(ctx, &RangeRequest{KeyRange: KeyRange{Key: fromKey}, Fields: NoFields})
	if err != nil {
		return 0, err
	}
	return res.Revision, nil
}

// Check says whether the store is usable: the database answers and has the schema that this program knows, and the writer
// takes work.
func (s *Store) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.opts.WriteTimeout)
	defer cancel()
	if err := s.engine.Check(ctx); err != nil {
		return err
	}
	return s.do(ctx, nil, func(context.Context, *batch) error { return nil })
}

// pause waits for RetryInterval or the end of ctx.
func (s *Store) pause(ctx context.Context) {
	timer := time.NewTimer(s.opts.RetryInterval)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func isLeaseNotFound(err error) bool { return errors.Is(err, ErrLeaseNotFound) }
