package etcdshim_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubase/kubase/pkg/etcdshim"
)

func TestErrorsAreEtcds(t *testing.T) {
	a := serve(t, etcdshim.Options{MaxRequestBytes: 1000, MaxTxnOps: 3})
	for range 5 {
		a.put(t, "k", "v")
	}
	if _, err := a.kv.Compact(t.Context(), &pb.CompactionRequest{Revision: 4}); err != nil {
		t.Fatal(err)
	}
	put := func(r *pb.PutRequest) func() error {
		return func() error { _, err := a.kv.Put(t.Context(), r); return err }
	}
	get := func(r *pb.RangeRequest) func() error {
		return func() error { _, err := a.kv.Range(t.Context(), r); return err }
	}
	putOp := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("x")}}}
	k := []byte("k")
	for name, c := range map[string]struct {
		call func() error
		want error
	}{
		"empty key":         {put(&pb.PutRequest{}), rpctypes.ErrGRPCEmptyKey},
		"value provided":    {put(&pb.PutRequest{Key: k, IgnoreValue: true, Value: k}), rpctypes.ErrGRPCValueProvided},
		"lease provided":    {put(&pb.PutRequest{Key: k, IgnoreLease: true, Lease: 1}), rpctypes.ErrGRPCLeaseProvided},
		"key not found":     {put(&pb.PutRequest{Key: []byte("none"), IgnoreValue: true}), rpctypes.ErrGRPCKeyNotFound},
		"lease not found":   {put(&pb.PutRequest{Key: k, Lease: 99}), rpctypes.ErrGRPCLeaseNotFound},
		"request too large": {put(&pb.PutRequest{Key: k, Value: bytes.Repeat(k, 1001)}), rpctypes.ErrGRPCRequestTooLarge},
		"compacted":         {get(&pb.RangeRequest{Key: k, Revision: 3}), rpctypes.ErrGRPCCompacted},
		"future revision":   {get(&pb.RangeRequest{Key: k, Revision: 99}), rpctypes.ErrGRPCFutureRev},
		"sort order":        {get(&pb.RangeRequest{Key: k, SortOrder: 9}), rpctypes.ErrGRPCInvalidSortOption},
		"too many operations": {func() error {
			_, err := a.kv.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{putOp, putOp, putOp, putOp}})
			return err
		}, rpctypes.ErrGRPCTooManyOps},
		"duplicate key": {func() error {
			_, err := a.kv.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{putOp, putOp}})
			return err
		}, rpctypes.ErrGRPCDuplicateKey},
		"compacted again": {func() error {
			_, err := a.kv.Compact(t.Context(), &pb.CompactionRequest{Revision: 2})
			return err
		}, rpctypes.ErrGRPCCompacted},
		"lease TTL": {func() error {
			_, err := a.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{TTL: 9_000_000_001})
			return err
		}, rpctypes.ErrGRPCLeaseTTLTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.call()
			if status.Code(err) != status.Code(c.want) || status.Convert(err).Message() != status.Convert(c.want).Message() {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

func TestRangeStreamChunks(t *testing.T) {
	a := serve(t, etcdshim.Options{MaxRequestBytes: 4000})
	const keys = 300
	for i := range keys {
		a.put(t, fmt.Sprintf("k%03d", i), strings.Repeat("v", 100))
	}
	for _, limit := range []int64{0, 1, 64, 65, 299, 300, 301} {
		stream, err := a.kv.RangeStream(t.Context(), &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l"), Limit: limit})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		var last *pb.RangeResponse
		chunks := 0
		for {
			r, err := stream.Recv()
			if err != nil {
				break
			}
			if last != nil && (last.Header != nil || last.More || last.Count != 0) {
				t.Errorf("limit %d: a chunk that is not the last has a header, more or count: %v", limit, last)
			}
			last = r.RangeResponse
			chunks++
			for _, kv := range last.Kvs {
				got = append(got, string(kv.Key))
			}
		}
		want := int64(keys)
		if limit > 0 {
			want = min(limit, keys)
		}
		if int64(len(got)) != want || got[0] != "k000" || got[want-1] != fmt.Sprintf("k%03d", want-1) {
			t.Errorf("limit %d: got %d keys, want %d", limit, len(got), want)
		}
		if last.Header.GetRevision() != keys+1 || last.Count != keys || last.More != (want < keys) {
			t.Errorf("limit %d: the last chunk says revision %d, count %d, more %v", limit, last.Header.GetRevision(), last.Count, last.More)
		}
		if want > 64 && chunks < 2 {
			t.Errorf("limit %d: one chunk for %d keys", limit, want)
		}
	}
	stream, err := a.kv.RangeStream(t.Context(), &pb.RangeRequest{Key: []byte("k"), SortOrder: pb.RangeRequest_DESCEND})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("a sorted stream: got %v, want Unimplemented as etcd answers", err)
	}
}

func TestStatusAndMembers(t *testing.T) {
	a := serve(t, etcdshim.Options{Name: "edge", ClientURLs: []string{"http://127.0.0.1:2379"}})
	revision := a.put(t, "k", "v")
	s, err := a.maintenance.Status(t.Context(), &pb.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if s.Version != "3.7.0" || s.DbSize <= 0 || s.DbSizeInUse <= 0 || s.Header.Revision != revision || s.Leader != s.Header.MemberId {
		t.Errorf("status is %v", s)
	}
	m, err := a.cluster.MemberList(t.Context(), &pb.MemberListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Members) != 1 || m.Members[0].ID != s.Header.MemberId || m.Members[0].Name != "edge" || m.Members[0].ClientURLs[0] != "http://127.0.0.1:2379" {
		t.Errorf("members are %v", m.Members)
	}
}
