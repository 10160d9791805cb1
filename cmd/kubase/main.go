package main

import (
	_ "github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/mattn/go-sqlite3"
	_ "github.com/pressly/goose/v3"
	_ "go.etcd.io/etcd/server/v3/embed"
	_ "go.etcd.io/etcd/client/v3"
	_ "k8s.io/kubernetes/cmd/kube-apiserver/app"
	_ "k8s.io/kubectl/pkg/cmd"
	_ "k8s.io/kubernetes/pkg/controlplane"
	_ "k8s.io/apiserver/pkg/storage/testing"
	_ "k8s.io/apiserver/pkg/storage/etcd3"
)

func main() {}
