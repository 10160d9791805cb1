package conformance

import (
	"context"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
)

// TestLocksAndElections walks two clients through the services v3lock and v3election, and compares all answers with those of a real etcd.
func TestLocksAndElections(t *testing.T) {
	want := locksAndElections(t, startEtcd(t, nil).server)
	for _, engine := range []string{"sqlite", "postgres"} {
		t.Run(engine, func(t *testing.T) {
			got := locksAndElections(t, startKubase(t, engine))
			if diff := gocmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Errorf("answers differ (- etcd, + kubase):\n%s", diff)
			}
		})
	}
}

func locksAndElections(t *testing.T, s server) (answers []proto.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), operationTimeout)
	defer cancel()
	lock, election := v3lockpb.NewLockClient(s.conn), v3electionpb.NewElectionClient(s.conn)
	note := func(answer proto.Message, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		forgetIDs(answer)
		answers = append(answers, answer)
	}
	must := func(answer proto.Message, err string) {
		t.Helper()
		if err != "" {
			t.Fatal(err)
		}
		answers = append(answers, answer)
	}
	for id := range int64(3) {
		must(s.send(t, &pb.LeaseGrantRequest{ID: id + 1, TTL: 1000}))
	}

	first, err := lock.Lock(ctx, &v3lockpb.LockRequest{Name: []byte("l"), Lease: 1})
	note(first, err)
	again, err := lock.Lock(ctx, &v3lockpb.LockRequest{Name: []byte("l"), Lease: 1})
	note(again, err)
	waits := background(func() (proto.Message, error) {
		return lock.Lock(ctx, &v3lockpb.LockRequest{Name: []byte("l"), Lease: 2})
	})
	s.waitForKeys(t, "l/", 2) // the second one is in the queue
	note(lock.Unlock(ctx, &v3lockpb.UnlockRequest{Key: first.Key}))
	second := <-waits
	note(second.answer, second.err)
	waits = background(func() (proto.Message, error) {
		return lock.Lock(ctx, &v3lockpb.LockRequest{Name: []byte("l"), Lease: 3})
	})
	s.waitForKeys(t, "l/", 2)
	must(s.send(t, &pb.LeaseRevokeRequest{ID: 2})) // the holder goes away
	third := <-waits
	note(third.answer, third.err)
	for id := range int64(2) {
		must(s.send(t, &pb.LeaseGrantRequest{ID: id + 11, TTL: 1000}))
	}

	if _, err := election.Leader(ctx, &v3electionpb.LeaderRequest{Name: []byte("e")}); err == nil {
		t.Errorf("%s: there is a leader before the election", s.name)
	} else {
		answers = append(answers, &v3electionpb.LeaderRequest{Name: []byte(err.Error())})
	}
	observed, err := election.Observe(ctx, &v3electionpb.LeaderRequest{Name: []byte("e")})
	if err != nil {
		t.Fatal(err)
	}
	leader, err := election.Campaign(ctx, &v3electionpb.CampaignRequest{Name: []byte("e"), Lease: 11, Value: []byte("one")})
	note(leader, err)
	seen, err := observed.Recv()
	note(seen, err)
	note(election.Leader(ctx, &v3electionpb.LeaderRequest{Name: []byte("e")}))
	note(election.Proclaim(ctx, &v3electionpb.ProclaimRequest{Leader: leader.Leader, Value: []byte("one, still")}))
	seen, err = observed.Recv()
	note(seen, err)
	waits = background(func() (proto.Message, error) {
		return election.Campaign(ctx, &v3electionpb.CampaignRequest{Name: []byte("e"), Lease: 12, Value: []byte("two")})
	})
	s.waitForKeys(t, "e/", 2)
	note(election.Resign(ctx, &v3electionpb.ResignRequest{Leader: leader.Leader}))
	next := <-waits
	note(next.answer, next.err)
	seen, err = observed.Recv()
	note(seen, err)
	_, err = election.Resign(ctx, &v3electionpb.ResignRequest{})
	answers = append(answers, &v3electionpb.LeaderRequest{Name: []byte(err.Error())})
	return answers
}

type result struct {
	answer proto.Message
	err    error
}

func background(call func() (proto.Message, error)) <-chan result {
	done := make(chan result, 1)
	go func() {
		answer, err := call()
		done <- result{answer, err}
	}()
	return done
}

// waitForKeys waits until there are n keys with a prefix.
func (s server) waitForKeys(t *testing.T, prefix string, n int64) {
	t.Helper()
	end := []byte(prefix)
	end[len(end)-1]++
	for {
		r, err := s.kv.Range(t.Context(), &pb.RangeRequest{Key: []byte(prefix), RangeEnd: end})
		if err != nil {
			t.Fatal(err)
		}
		if r.Count == n {
			return
		}
	}
}
