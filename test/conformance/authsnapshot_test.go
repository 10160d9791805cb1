package conformance

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
)

// TestSnapshotHasUsers takes users, passwords and roles to a real etcd, which then asks for them.
func TestSnapshotHasUsers(t *testing.T) {
	for _, engine := range []string{"sqlite", "postgres"} {
		t.Run(engine, func(t *testing.T) {
			ours := startKubase(t, engine)
			client := pb.NewAuthClient(ours.conn)
			perm := &authpb.Permission{PermType: authpb.READ, Key: []byte("a"), RangeEnd: []byte("b")}
			must[*pb.AuthUserAddResponse](t)(client.UserAdd(t.Context(), &pb.AuthUserAddRequest{Name: "root", Password: "r"}))
			must[*pb.AuthUserGrantRoleResponse](t)(client.UserGrantRole(t.Context(), &pb.AuthUserGrantRoleRequest{User: "root", Role: "root"}))
			must[*pb.AuthRoleAddResponse](t)(client.RoleAdd(t.Context(), &pb.AuthRoleAddRequest{Name: "reader"}))
			must[*pb.AuthRoleGrantPermissionResponse](t)(client.RoleGrantPermission(t.Context(),
				&pb.AuthRoleGrantPermissionRequest{Name: "reader", Perm: perm}))
			must[*pb.AuthEnableResponse](t)(client.AuthEnable(t.Context(), &pb.AuthEnableRequest{}))
			login := func(s server) context.Context {
				t.Helper()
				r := must[*pb.AuthenticateResponse](t)(pb.NewAuthClient(s.conn).Authenticate(t.Context(), &pb.AuthenticateRequest{Name: "root", Password: "r"}))
				return metadata.AppendToOutgoingContext(t.Context(), rpctypes.TokenFieldNameGRPC, r.Token)
			}
			asRoot := login(ours)
			ours.maintenance = authorized{ours.maintenance, asRoot}
			restored := restoreSnapshot(t, ours)

			if _, err := restored.kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("a")}); status.Code(err) != codes.InvalidArgument {
				t.Errorf("etcd answers a stranger: %v", err)
			}
			want := must[*pb.AuthRoleGetResponse](t)(client.RoleGet(asRoot, &pb.AuthRoleGetRequest{Role: "reader"}))
			got := must[*pb.AuthRoleGetResponse](t)(pb.NewAuthClient(restored.conn).RoleGet(login(restored.server), &pb.AuthRoleGetRequest{Role: "reader"}))
			if diff := cmp.Diff(want.Perm, got.Perm, protocmp.Transform()); diff != "" {
				t.Errorf("permissions (- kubase, + etcd):\n%s", diff)
			}
			before := must[*pb.AuthStatusResponse](t)(client.AuthStatus(asRoot, &pb.AuthStatusRequest{}))
			after := must[*pb.AuthStatusResponse](t)(pb.NewAuthClient(restored.conn).AuthStatus(t.Context(), &pb.AuthStatusRequest{}))
			if before.AuthRevision != after.AuthRevision {
				t.Errorf("auth revision %d in kubase, %d in etcd", before.AuthRevision, after.AuthRevision)
			}
		})
	}
}

// authorized takes snapshots by somebody's right.
type authorized struct {
	pb.MaintenanceClient
	who context.Context
}

func (a authorized) Snapshot(_ context.Context, r *pb.SnapshotRequest, opts ...grpc.CallOption) (pb.Maintenance_SnapshotClient, error) {
	return a.MaintenanceClient.Snapshot(a.who, r, opts...)
}
