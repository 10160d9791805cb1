//go:build tools

// Package main keeps the servers that are measured beside kubase in go.mod.
package main

import (
	_ "github.com/k3s-io/kine"
	_ "go.etcd.io/etcd/server/v3/etcdmain"
)
