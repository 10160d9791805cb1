package conformance

import (
	"fmt"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
)

// TestMembershipAndVersions compares what is the same although kubase has neither members nor another version to go to.
func TestMembershipAndVersions(t *testing.T) {
	real, ours := startEtcd(t, nil), startKubase(t, "sqlite")
	const nobody = 12345
	for _, r := range []proto.Message{
		&pb.MemberAddRequest{PeerURLs: []string{"nonsense"}},
		&pb.MemberAddRequest{},
		&pb.MemberRemoveRequest{ID: nobody},
		&pb.MemberUpdateRequest{ID: nobody, PeerURLs: []string{"http://127.0.0.1:1"}},
		&pb.MemberPromoteRequest{ID: nobody},
		&pb.MoveLeaderRequest{TargetID: nobody},
		&pb.DowngradeRequest{Action: pb.DowngradeRequest_VALIDATE, Version: "x"},
		&pb.DowngradeRequest{Action: pb.DowngradeRequest_VALIDATE, Version: "3"},
		&pb.DowngradeRequest{Action: pb.DowngradeRequest_VALIDATE, Version: "3.4.0"},
		&pb.DowngradeRequest{Action: pb.DowngradeRequest_ENABLE, Version: "3.8"},
		&pb.DowngradeRequest{Action: pb.DowngradeRequest_CANCEL},
		&pb.DowngradeRequest{Action: 9},
		&pb.DefragmentRequest{},
	} {
		t.Run(fmt.Sprintf("%T %v", r, r), func(t *testing.T) {
			want, wantErr := real.send(t, r)
			got, gotErr := ours.send(t, r)
			if wantErr != gotErr {
				t.Errorf("the error is %q, etcd's is %q", gotErr, wantErr)
			}
			if diff := gocmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Errorf("answers differ (- etcd, + kubase):\n%s", diff)
			}
		})
	}
	for name, s := range map[string]server{"etcd": real.server, "kubase": ours} {
		t.Run(name, func(t *testing.T) {
			members, err := s.cluster.MemberList(t.Context(), &pb.MemberListRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if members.Header.Revision != 0 || len(members.Members) != 1 || members.Members[0].ID != members.Header.MemberId {
				t.Errorf("members are %v", members)
			}
			self := members.Header.MemberId
			if _, err := s.send(t, &pb.MoveLeaderRequest{TargetID: self}); err != "" {
				t.Errorf("moving the leader to where it is: %s", err)
			}
			if _, err := s.send(t, &pb.MemberPromoteRequest{ID: self}); err != "FailedPrecondition: etcdserver: can only promote a learner member" {
				t.Errorf("promoting the leader: %s", err)
			}
		})
	}
}
