package etcdshim

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// authServer says that authentication is off; everything else of it is refused as unimplemented.
type authServer struct {
	pb.UnimplementedAuthServer
}

func (*authServer) AuthStatus(context.Context, *pb.AuthStatusRequest) (*pb.AuthStatusResponse, error) {
	return &pb.AuthStatusResponse{Header: &pb.ResponseHeader{}}, nil
}
