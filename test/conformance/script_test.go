package conformance

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"golang.org/x/crypto/bcrypt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apiserver/pkg/storage/etcd3/testserver"

	kubase "github.com/kubase/kubase/test/conformance/testserver"
)

var record = flag.Bool("record", false, "write the answers of a real etcd into the scripts")

// TestScripts sends the requests in testdata/scripts to a real etcd and to kubase on each engine, and compares the answers with those in
// the files: what etcd answers stands there to be read, and with -record is written there anew.
//
// A script is a list of requests, each with its answer:
//
//	# A comment.
//	Put key:"a" value:"1"
//	----
//	header:{revision:2}
//
// A request is the name of an RPC of etcd's and its message in protobuf's text format; an answer is a message in that format, one line a
// field, or the lines of an error. A string "<1000 bytes>" stands for so many of them. What differs from one etcd to another is left
// out: ids of the cluster and its members, and what only raft knows. On streams:
//
//	Watch s create_request:{...}   sends a request on the stream s, which it opens, and shows all answers up to the one to it;
//	                               to a progress_request that is the first progress at the newest revision
//	Events s N                     waits for N more events, or for the watch to be cancelled, and shows the answers
//	LeaseKeepAlive ID:1            is one request and one answer
//
// A request that begins with @name is sent with the token of the last Authenticate of that user.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/scripts/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	if *record {
		for _, file := range files {
			t.Run(filepath.Base(file), func(t *testing.T) { recordScript(t, file) })
		}
	}
	for _, server := range servers {
		t.Run(server.name, func(t *testing.T) {
			for _, file := range files {
				t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
					runScript(t, readScript(t, file), server.start(t))
				})
			}
		})
	}
}

// servers start an empty server for a test. A real etcd is among them: it shows that what a test expects is what etcd does.
var servers = []struct {
	name  string
	start func(*testing.T) *kubernetes.Client
}{
	{"etcd", runEtcd},
	{"sqlite", runKubase("sqlite")},
	{"postgres", runKubase("postgres")},
}

func runEtcd(t *testing.T) *kubernetes.Client {
	config := testserver.NewTestConfig(t)
	config.BcryptCost = uint(bcrypt.MinCost) // passwords are hashed often
	return testserver.RunEtcd(t, config)
}

func runKubase(engine string) func(*testing.T) *kubernetes.Client {
	return func(t *testing.T) *kubernetes.Client {
		t.Setenv(kubase.EngineVariable, engine)
		config := kubase.NewTestConfig(t)
		config.BcryptCost = uint(bcrypt.MinCost)
		return kubase.RunEtcd(t, config)
	}
}

// step is a request of a script with its answer.
type step struct {
	line     int
	comments string // and empty lines, as they stand before it
	request  string // one line or more
	answer   string
}

const answerFollows = "----"

func readScript(t *testing.T, file string) []step {
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var steps []step
	lines := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
	for i := 0; i < len(lines); {
		var s step
		for i < len(lines) && (lines[i] == "" || strings.HasPrefix(lines[i], "#")) {
			s.comments += lines[i] + "\n"
			i++
		}
		s.line = i + 1
		for i < len(lines) && lines[i] != "" && lines[i] != answerFollows {
			s.request += lines[i] + "\n"
			i++
		}
		if i < len(lines) && lines[i] == answerFollows {
			i++
		}
		for i < len(lines) && lines[i] != "" {
			s.answer += lines[i] + "\n"
			i++
		}
		steps = append(steps, s)
	}
	return steps
}

func recordScript(t *testing.T, file string) {
	p := newPlayer(t, runEtcd(t))
	var out bytes.Buffer
	for _, s := range readScript(t, file) {
		fmt.Fprintf(&out, "%s%s", s.comments, s.request)
		if s.request != "" {
			fmt.Fprintf(&out, "%s\n%s", answerFollows, p.play(s))
		}
	}
	if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func runScript(t *testing.T, steps []step, client *kubernetes.Client) {
	p := newPlayer(t, client)
	for _, s := range steps {
		if diff := cmp.Diff(s.answer, p.play(s)); diff != "" {
			t.Fatalf("line %d: %s- in the script, + from the server:\n%s", s.line, s.request, diff)
		}
	}
}

// newPlayer connects without what etcd's client does on its own, such as trying again.
func newPlayer(t *testing.T, client *kubernetes.Client) *player {
	address := strings.TrimPrefix(client.Endpoints()[0], "http://")
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		_, _ = conn.Close(), client.Close() // the server may be gone already
	})
	return &player{t: t, ctx: ctx, conn: conn, watches: map[string]*watchStream{}, tokens: map[string]string{}}
}
