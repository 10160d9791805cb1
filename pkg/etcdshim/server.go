// Package etcdshim serves the etcd v3 API on a store: one file a gRPC service. Answers and errors are etcd's.
package etcdshim

import (
	"context"
	"crypto/tls"
	"hash/fnv"
	"log/slog"
	"math"
	"net"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// Options tunes the server. The zero value is etcd's defaults.
type Options struct {
	// Name and ClientURLs are what MemberList says of this server.
	Name       string
	ClientURLs []string
	// MaxRequestBytes bounds a request. Default 1.5 MiB.
	MaxRequestBytes int
	// MaxTxnOps bounds the comparisons, and the operations of each branch, of a Txn. Default 128.
	MaxTxnOps int
	// QuotaBytes is the database size from which on the alarm NOSPACE is raised; 0 is no quota.
	QuotaBytes int64
	// AlarmWhenFull raises the alarm when the database cannot grow, too. It is for those who can clear it: without, writes are refused as
	// long as the disk is full, and no longer.
	AlarmWhenFull bool
	// WatchProgressInterval is how often a watch that asked for it hears of progress when it has no events. Default 10 min.
	WatchProgressInterval time.Duration
	// MaxConcurrentStreams bounds what one connection may have open. Default 2^32-1.
	MaxConcurrentStreams uint32
	// A client that pings more often than KeepaliveMinTime is cut off. Default 5 s.
	KeepaliveMinTime time.Duration
	// A client that is silent for KeepaliveInterval is pinged, and cut off if it does not answer within KeepaliveTimeout. 0: it is not.
	KeepaliveInterval time.Duration
	KeepaliveTimeout  time.Duration
	// TLS, if set, is used for connections that Serve accepts.
	TLS *tls.Config
	// Auth, if set, says who may do what; without it everybody may do everything. The caller closes it.
	Auth *Auth
	// ClientCertAuth says that TLS asks clients for certificates: the common name of one is the name of a user who shows no token.
	ClientCertAuth bool
	// Interceptors see every call; for metrics and traces.
	Interceptors []grpc.ServerOption
	// Logger gets failures that no client hears of. Default slog.Default().
	Logger *slog.Logger
}

const (
	// A request has this much room beside its payload, as in etcd.
	requestOverheadBytes = 512 << 10
	// So many goroutines take the calls, others are started when all are busy: a goroutine's stack grows in its first call.
	streamWorkers = 64
	// What a single server that is always the leader says of raft.
	raftTerm = 1
)

func (o Options) withDefaults() Options {
	if o.Name == "" {
		o.Name = "kubase"
	}
	if o.MaxRequestBytes == 0 {
		o.MaxRequestBytes = 1536 << 10
	}
	if o.MaxTxnOps == 0 {
		o.MaxTxnOps = 128
	}
	if o.MaxConcurrentStreams == 0 {
		o.MaxConcurrentStreams = math.MaxUint32
	}
	if o.KeepaliveMinTime == 0 {
		o.KeepaliveMinTime = 5 * time.Second
	}
	if o.WatchProgressInterval == 0 {
		o.WatchProgressInterval = 10 * time.Minute
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

// server is what the services share.
type server struct {
	store  *sqlstore.Store
	opts   Options
	log    *slog.Logger
	member uint64
	quota  *quota
	// stopping ends when the server stops; streams end with it.
	stopping context.Context
}

// Server is a gRPC server with etcd's services.
type Server struct {
	*grpc.Server
	stop   context.CancelFunc
	health *health.Server
	locks  *clientv3.Client // of the services that work over a client
	calls  *calls
	conns  *conns
}

// NewServer makes a server on a store, which it does not own.
func NewServer(store *sqlstore.Store, opts Options) *Server {
	opts = opts.withDefaults()
	stopping, stop := context.WithCancel(context.Background())
	s := &server{
		store: store, opts: opts, log: opts.Logger, member: memberID(store.ClusterID(), opts.Name),
		quota: newQuota(store, opts.QuotaBytes), stopping: stopping,
	}
	underWay := newCalls()
	serverOptions := append([]grpc.ServerOption{
		grpc.MaxRecvMsgSize(opts.MaxRequestBytes + requestOverheadBytes),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.MaxConcurrentStreams(opts.MaxConcurrentStreams),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: opts.KeepaliveMinTime}),
		grpc.ForceServerCodecV2(newCodec()),
	}, opts.Interceptors...)
	serverOptions = append(serverOptions, grpc.ChainUnaryInterceptor(underWay.intercept, newLargeRanges(underWay.finishing).intercept))
	if opts.KeepaliveInterval > 0 && opts.KeepaliveTimeout > 0 {
		serverOptions = append(serverOptions, grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: opts.KeepaliveInterval, Timeout: opts.KeepaliveTimeout,
		}))
	}
	if opts.Auth != nil {
		serverOptions = append(serverOptions, grpc.ChainUnaryInterceptor(s.authorizeUnary), grpc.ChainStreamInterceptor(s.authorizeStream))
	}
	if opts.TLS != nil {
		serverOptions = append(serverOptions, grpc.Creds(credentials.NewTLS(opts.TLS)))
	}
	g := grpc.NewServer(serverOptions...)
	kv, watch, lease := &kvServer{server: s}, &watchServer{server: s}, &leaseServer{server: s}
	pb.RegisterKVServer(g, kv)
	pb.RegisterWatchServer(g, watch)
	pb.RegisterLeaseServer(g, lease)
	pb.RegisterMaintenanceServer(g, newMaintenanceServer(s))
	pb.RegisterClusterServer(g, &clusterServer{server: s})
	pb.RegisterAuthServer(g, &authServer{server: s})
	healthServer := health.NewServer()
	healthpb.RegisterHealthServer(g, healthServer)
	return &Server{
		Server: g, stop: stop, health: healthServer, locks: registerLocks(g, kv, watch, lease),
		calls: underWay, conns: &conns{open: map[net.Conn]struct{}{}},
	}
}

// memberID is the same for a server of the same name on the same database, and never 0.
func memberID(cluster int64, name string) uint64 {
	h := fnv.New64a()
	for i := range 8 {
		_, _ = h.Write([]byte{byte(cluster >> (8 * i))})
	}
	_, _ = h.Write([]byte(name))
	return h.Sum64() | 1
}

// header is the header of an answer given at a revision.
func (s *server) header(revision sqlstore.Revision) *pb.ResponseHeader {
	return &pb.ResponseHeader{
		ClusterId: uint64(s.store.ClusterID()),
		MemberId:  s.member,
		Revision:  int64(revision),
		RaftTerm:  raftTerm,
	}
}
