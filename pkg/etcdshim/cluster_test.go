package etcdshim_test

import (
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubase/kubase/pkg/etcdshim"
)

// What is the same as etcd's is in test/conformance.
func TestMembersCannotBeChanged(t *testing.T) {
	a := serve(t, etcdshim.Options{})
	members, err := a.cluster.MemberList(t.Context(), &pb.MemberListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	self := members.Members[0].ID
	_, add := a.cluster.MemberAdd(t.Context(), &pb.MemberAddRequest{PeerURLs: []string{"http://10.0.0.1:2380"}})
	_, remove := a.cluster.MemberRemove(t.Context(), &pb.MemberRemoveRequest{ID: self})
	_, update := a.cluster.MemberUpdate(t.Context(), &pb.MemberUpdateRequest{ID: self, PeerURLs: []string{"http://10.0.0.1:2380"}})
	for call, err := range map[string]error{"add": add, "remove": remove, "update": update} {
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "start them on the same database") {
			t.Errorf("%s: %v", call, err)
		}
	}
}
