package etcdshim

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// registerLocks registers etcd's own lock and election services, which work over a client, and returns that client: it calls our
// services directly, with the context of the caller.
func registerLocks(g *grpc.Server, kv pb.KVServer, watch pb.WatchServer, lease pb.LeaseServer) *clientv3.Client {
	c := clientv3.NewCtxClient(context.Background(), clientv3.WithZapLogger(zap.NewNop()))
	c.KV = clientv3.NewKVFromKVClient(adapter.KvServerToKvClient(kv), c)
	c.Watcher = &ownStreams{Watcher: clientv3.NewWatchFromWatchClient(adapter.WatchServerToWatchClient(watch), c)}
	c.Lease = clientv3.NewLeaseFromLeaseClient(adapter.LeaseServerToLeaseClient(lease), c, time.Second)
	v3lockpb.RegisterLockServer(g, v3lock.NewLockServer(c))
	v3electionpb.RegisterElectionServer(g, v3election.NewElectionServer(c))
	return c
}

// ownStreams gives each watch a stream of its own. The client would let those share one whose metadata are the same, and so serve one
// caller's watch by the right of another.
type ownStreams struct {
	clientv3.Watcher
	n atomic.Int64
}

func (w *ownStreams) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	ctx = metadata.AppendToOutgoingContext(ctx, "watch", strconv.FormatInt(w.n.Add(1), 10))
	return w.Watcher.Watch(ctx, key, opts...)
}
