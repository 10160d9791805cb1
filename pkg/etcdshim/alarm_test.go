package etcdshim_test

import (
	"errors"
	"os/signal"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/status"

	"github.com/kubase/kubase/pkg/etcdshim"
)

// writes are the calls that alarms are about.
func (a api) writes(t *testing.T) map[string]func() error {
	k := []byte("k")
	put := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: k}}}
	del := &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: k}}}
	get := &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: k}}}
	txn := func(ops ...*pb.RequestOp) func() error {
		return func() error { _, err := a.kv.Txn(t.Context(), &pb.TxnRequest{Failure: ops}); return err }
	}
	return map[string]func() error{
		"put":         func() error { _, err := a.kv.Put(t.Context(), &pb.PutRequest{Key: k}); return err },
		"txn put":     txn(get, put),
		"txn delete":  txn(get, del),
		"txn get":     txn(get),
		"delete":      func() error { _, err := a.kv.DeleteRange(t.Context(), &pb.DeleteRangeRequest{Key: k}); return err },
		"get":         func() error { _, err := a.kv.Range(t.Context(), &pb.RangeRequest{Key: k}); return err },
		"grant":       func() error { _, err := a.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{TTL: 100}); return err },
		"revoke none": func() error { _, err := a.lease.LeaseRevoke(t.Context(), &pb.LeaseRevokeRequest{ID: 9}); return err },
		"compact": func() error {
			_, err := a.kv.Compact(t.Context(), &pb.CompactionRequest{Revision: a.revision(t)})
			return err
		},
	}
}

func (a api) revision(t *testing.T) int64 {
	t.Helper()
	r, err := a.kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("k")})
	if err != nil {
		t.Fatal(err)
	}
	return r.Header.Revision
}

func (a api) alarm(t *testing.T, r *pb.AlarmRequest) []*pb.AlarmMember {
	t.Helper()
	res, err := a.maintenance.Alarm(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if res.Header.GetMemberId() == 0 || res.Header.Revision == 0 {
		t.Errorf("the header is %v", res.Header)
	}
	return res.Alarms
}

// expect calls all writes; those that are named must be refused with an error.
func (a api) expect(t *testing.T, want error, refused ...string) {
	t.Helper()
	for name, call := range a.writes(t) {
		var expected error
		for _, r := range refused {
			if r == name {
				expected = want
			}
		}
		err := call()
		if expected == nil && name == "revoke none" {
			expected = rpctypes.ErrGRPCLeaseNotFound
		}
		if expected == nil && name == "compact" && errors.Is(rpctypes.Error(err), rpctypes.ErrCompacted) {
			continue // nothing was written since the last time
		}
		if status.Code(err) != status.Code(expected) || status.Convert(err).Message() != status.Convert(expected).Message() {
			t.Errorf("%s: got %v, want %v", name, err, expected)
		}
	}
}

func TestAlarmsRefuseWhatEtcdRefuses(t *testing.T) {
	a := serve(t, etcdshim.Options{})
	a.put(t, "k", "v")
	activate := func(kind pb.AlarmType) {
		t.Helper()
		for range 2 { // again does nothing
			got := a.alarm(t, &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: 7, Alarm: kind})
			if len(got) != 1 || got[0].MemberID != 7 || got[0].Alarm != kind {
				t.Errorf("raising %v answers %v", kind, got)
			}
		}
	}
	clear := func(kind pb.AlarmType, want int) {
		t.Helper()
		got := a.alarm(t, &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: 7, Alarm: kind})
		if len(got) != want {
			t.Errorf("clearing %v answers %v", kind, got)
		}
	}
	a.expect(t, nil)
	activate(pb.AlarmType_NOSPACE)
	a.expect(t, rpctypes.ErrGRPCNoSpace, "put", "txn put", "grant")
	activate(pb.AlarmType_CORRUPT)
	a.expect(t, rpctypes.ErrGRPCCorrupt, "put", "txn put", "txn delete", "delete", "grant", "revoke none", "compact")
	if got := a.alarm(t, &pb.AlarmRequest{}); len(got) != 2 {
		t.Errorf("alarms are %v", got)
	}
	if got := a.alarm(t, &pb.AlarmRequest{Alarm: pb.AlarmType_CORRUPT}); len(got) != 1 || got[0].Alarm != pb.AlarmType_CORRUPT {
		t.Errorf("alarms of one kind are %v", got)
	}
	st, err := a.maintenance.Status(t.Context(), &pb.StatusRequest{})
	if err != nil || len(st.Errors) != 2 || !strings.Contains(st.Errors[0], "NOSPACE") || !strings.Contains(st.Errors[1], "CORRUPT") {
		t.Errorf("status says %v, %v", st.GetErrors(), err)
	}
	clear(pb.AlarmType_CORRUPT, 1)
	clear(pb.AlarmType_CORRUPT, 0)
	a.expect(t, rpctypes.ErrGRPCNoSpace, "put", "txn put", "grant")
	clear(pb.AlarmType_NOSPACE, 1)
	a.expect(t, nil)
}

func TestQuotaRaisesTheAlarm(t *testing.T) {
	a := serve(t, etcdshim.Options{QuotaBytes: 1})
	a.expect(t, rpctypes.ErrGRPCNoSpace, "put", "txn put", "grant")
	if _, err := a.kv.Put(t.Context(), &pb.PutRequest{}); status.Code(err) != status.Code(rpctypes.ErrGRPCNoSpace) {
		t.Errorf("a put without a key: got %v; etcd looks at the quota first", err)
	}
	got := a.alarm(t, &pb.AlarmRequest{})
	if len(got) != 1 || got[0].Alarm != pb.AlarmType_NOSPACE {
		t.Fatalf("alarms are %v", got)
	}
	a.alarm(t, &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: got[0].MemberID, Alarm: pb.AlarmType_NOSPACE})
	a.expect(t, rpctypes.ErrGRPCNoSpace, "put", "txn put", "grant") // it is raised again
	if got := a.alarm(t, &pb.AlarmRequest{}); len(got) != 1 {
		t.Errorf("alarms are %v", got)
	}
}

func TestAlarmStaysClearedWhenThereIsRoomAgain(t *testing.T) {
	a := serve(t, etcdshim.Options{QuotaBytes: 1 << 20})
	for len(a.alarm(t, &pb.AlarmRequest{})) == 0 {
		_, err := a.kv.Put(t.Context(), &pb.PutRequest{Key: []byte("k"), Value: make([]byte, 100<<10)})
		if err != nil && !errors.Is(rpctypes.Error(err), rpctypes.ErrNoSpace) {
			t.Fatal(err)
		}
	}
	alarm := a.alarm(t, &pb.AlarmRequest{})[0]
	if _, err := a.kv.DeleteRange(t.Context(), &pb.DeleteRangeRequest{Key: []byte("k")}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.kv.Compact(t.Context(), &pb.CompactionRequest{Revision: a.revision(t), Physical: true}); err != nil {
		t.Fatal(err)
	}
	a.expect(t, rpctypes.ErrGRPCNoSpace, "put", "txn put", "grant") // the alarm stands
	a.alarm(t, &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: alarm.MemberID, Alarm: alarm.Alarm})
	a.expect(t, nil) // whatever was so a second ago
}

func TestFullDiskRaisesTheAlarm(t *testing.T) {
	for name, alarm := range map[string]bool{"Alarm": true, "NoAlarm": false} {
		t.Run(name, func(t *testing.T) {
			a := serve(t, etcdshim.Options{AlarmWhenFull: alarm})
			a.put(t, "k", "v")
			fillDisk(t, a)
			got := a.alarm(t, &pb.AlarmRequest{})
			if !alarm {
				if len(got) != 0 {
					t.Errorf("alarms are %v", got)
				}
				a.expect(t, nil)
				return
			}
			if len(got) != 1 || got[0].Alarm != pb.AlarmType_NOSPACE {
				t.Fatalf("alarms are %v", got)
			}
			a.expect(t, rpctypes.ErrGRPCNoSpace, "put", "txn put", "grant") // although there is space again
			a.alarm(t, &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: got[0].MemberID, Alarm: pb.AlarmType_NOSPACE})
			a.expect(t, nil)
		})
	}
}

// fillDisk puts until the disk is full, and gives it space again.
func fillDisk(t *testing.T, a api) {
	t.Helper()
	signal.Ignore(unix.SIGXFSZ) // so that a write fails with EFBIG
	t.Cleanup(func() { signal.Reset(unix.SIGXFSZ) })
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	full := unix.Rlimit{Cur: 1 << 20, Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &full); err != nil {
		t.Fatal(err)
	}
	var err error
	for n := 0; err == nil && n < 100; n++ {
		_, err = a.kv.Put(t.Context(), &pb.PutRequest{Key: []byte("k"), Value: make([]byte, 100<<10)})
	}
	if again := unix.Setrlimit(unix.RLIMIT_FSIZE, &limit); again != nil {
		t.Fatal(again)
	}
	if !errors.Is(rpctypes.Error(err), rpctypes.ErrNoSpace) {
		t.Fatalf("a put on a full disk: %v", err)
	}
}
