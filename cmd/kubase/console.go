package main

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"

	baseversion "k8s.io/component-base/version"
)

// slowStart is when a person who waits for the server deserves a word.
const slowStart = 15 * time.Second

// console is what a person sees who starts the server by hand and asks for no log: where the server is when it is ready,
// and the errors it logs from then on until it stops. A server that starts or stops logs errors that are none, and what
// keeps it from starting is what the program ends with.
type console struct {
	out     io.Writer
	log     io.Writer
	started atomic.Bool
	stopped func() bool // whether the program was told to stop
}

func (c *console) serving() bool { return c.started.Load() && !c.stopped() }

// watch says so if the server is not ready after a while.
func (c *console) watch() {
	time.AfterFunc(slowStart, func() {
		if !c.started.Load() && !c.stopped() {
			fmt.Fprintln(c.log, "The server is not ready yet. With -v=1 it says what it does.")
		}
	})
}

// ready says what to do next. The kubeconfig is empty if there is none to offer.
func (c *console) ready(url, kubeconfig string) {
	c.started.Store(true)
	fmt.Fprintf(c.out, "kubase %s is ready.\n  server      %s\n", baseversion.Get().GitVersion, url)
	if kubeconfig != "" {
		fmt.Fprintf(c.out, "  kubeconfig  %s\n", kubeconfig)
		fmt.Fprintf(c.out, "  try         kubectl --kubeconfig %s get namespaces\n", kubeconfig)
	}
}

// Write takes a message of the log. The text format writes each with one call, its severity first. After a fatal one the
// program ends, so nobody will say it again.
func (c *console) Write(message []byte) (int, error) {
	if len(message) > 0 && (message[0] == 'F' || message[0] == 'E' && c.serving()) {
		return c.log.Write(message)
	}
	return len(message), nil
}
