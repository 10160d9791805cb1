package datastore

import (
	"sync"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
)

// apiServerMetrics counts the calls of an API server's datastore. A process has one registry, so it has one of these.
var apiServerMetrics = sync.OnceValue(func() *grpcprom.ServerMetrics { return grpcprom.NewServerMetrics() })

// Metrics counts the calls of each method of each service, under etcd's names.
func (d *Datastore) Metrics() prometheus.Collector { return d.metrics }

func interceptors(metrics *grpcprom.ServerMetrics) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(metrics.UnaryServerInterceptor()),
		grpc.ChainStreamInterceptor(metrics.StreamServerInterceptor()),
	}
}
