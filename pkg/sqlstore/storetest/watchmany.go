package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/kubase/kubase/pkg/sqlstore"
)

var watchManyCases = []testCase{
	{name: "EveryKindOfRange_Ring", run: everyKindOfRange},
	{name: "EveryKindOfRange_History", run: everyKindOfRange, options: small},
	{name: "ManyStreamsWhileWriting_I8", run: manyStreams},
	{name: "ManyStreamsWhileWriting_History_I8", run: manyStreams, options: sqlstore.Options{RingBytes: 4 << 10}},
}

// everyKindOfRange watches single keys, prefixes and odd ranges, some of them twice, and ends some in between.
func everyKindOfRange(f *fixture) {
	const seed = 1
	random := rand.New(rand.NewPCG(seed, seed))
	s := f.stream()
	watches := []*watch{}
	for _, key := range awkwardKeys {
		for _, end := range append([]string{"", "", "a0", "b\x00"}, awkwardKeys...) {
			watches = append(watches, s.watch(sqlstore.WatchRequest{KeyRange: span(key, end)}))
		}
		if key[len(key)-1] != 0xff {
			watches = append(watches, s.watch(sqlstore.WatchRequest{KeyRange: prefix(key)}))
		}
	}
	log := f.stream().watch(sqlstore.WatchRequest{KeyRange: everything})
	ends := map[*watch]sqlstore.Revision{}
	for i := range 150 {
		key := awkwardKeys[random.IntN(len(awkwardKeys))]
		if random.IntN(4) == 0 {
			f.delete(single(key))
		} else {
			f.put(key, fmt.Sprint(i))
		}
		if w := watches[random.IntN(len(watches))]; !w.cancelled {
			s.settle() // what it has up to here is known
			s.Cancel(w.watcher)
			w.cancelled = true
			ends[w] = f.current()
		}
	}
	s.settle()
	log.settle()
	for _, w := range watches {
		var want []string
		for _, e := range log.events {
			if end, ended := ends[w]; inRange(string(e.KV.Key), w.watcher.KeyRange) && (!ended || e.KV.ModRevision <= end) {
				want = append(want, eventString(e))
			}
		}
		same(f, fmt.Sprintf("events in [%q, %q)", w.watcher.Key, w.watcher.End), describeEvents(w.events), want)
	}
}

// manyStreams starts watches while others write; each gets everything from its revision on.
func manyStreams(f *fixture) {
	const writers, puts, readers = 4, 60, 8
	var writing, reading sync.WaitGroup
	for i := range writers {
		writing.Go(func() {
			for range puts {
				r := ops(put(fmt.Sprintf("k/%d", i), "x"))
				if _, err := f.Txn(f.ctx, &r); err != nil {
					f.Error(err)
					return
				}
			}
		})
	}
	const last = 1 + writers*puts
	for range readers {
		reading.Go(func() {
			stream := f.NewWatchStream()
			defer stream.Close()
			from := max(2, stream.Revision()/2)
			stream.Watch(sqlstore.WatchRequest{KeyRange: prefix("k/"), From: from})
			if err := denseUntil(f.ctx, stream, from, last); err != nil {
				f.Error(err)
			}
		})
	}
	writing.Wait()
	reading.Wait()
	equal(f, "I1: revisions", f.current(), last)
}

// denseUntil takes events of the stream's one watcher, of which there is one for each revision, up to a revision.
func denseUntil(ctx context.Context, s *sqlstore.WatchStream, next, last sqlstore.Revision) error {
	for next <= last {
		b, err := s.Next(ctx)
		if err != nil {
			return fmt.Errorf("waiting for revision %d: %w", next, err)
		}
		for _, e := range b.Events {
			if e.KV.ModRevision != next {
				return fmt.Errorf("I8: revision %d came, not %d", e.KV.ModRevision, next)
			}
			next++
		}
	}
	return nil
}
