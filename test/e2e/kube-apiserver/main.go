// Command kube-apiserver is upstream's, but its watch caches are compared with storage every second or two: it does so every five minutes, for
// which no test waits. With KUBE_WATCHCACHE_CONSISTENCY_CHECKER=true it panics if they differ.
package main

import (
	"os"
	"time"

	"k8s.io/apiserver/pkg/storage/cacher/consistency"
	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	consistency.CheckPeriod = time.Second
	os.Exit(cli.Run(app.NewAPIServerCommand()))
}
