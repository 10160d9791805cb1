// Command durable runs a program with the DSN of a Postgres server of its own as its last argument, prefixed by what -flag says. The
// server's commits reach the disk. It ends with the program.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"

	"github.com/kubase/kubase/test/postgrestest"
)

func main() {
	prefix := flag.String("flag", "-postgres=", "what stands before the DSN")
	dir := flag.String("dir", ".", "directory to run the program in")
	flag.Parse()
	err := postgrestest.WithDurableServer(func(dsn string) error {
		cmd := exec.Command(flag.Arg(0), append(flag.Args()[1:], *prefix+dsn)...)
		cmd.Dir = *dir
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		return cmd.Run()
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "durable:", err)
		os.Exit(1)
	}
}
