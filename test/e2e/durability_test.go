package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
)

// eventually waits until attempt succeeds.
func eventually(t *testing.T, what string, attempt func() error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		last = attempt()
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("%s: not after %s: %v", what, patience, last)
	}
}

// testRestart stops the server, starts it again and expects to find everything, and watches to go on where they were. Then
// it kills the server while clients write.
func testRestart(t *testing.T, s *server, dir string, flags []string) {
	ns := s.namespace(t, "restart")
	create := func(s *server, name string) (*corev1.ConfigMap, error) {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
		return s.client.CoreV1().ConfigMaps(ns).Create(t.Context(), object, metav1.CreateOptions{})
	}
	event := func(s *server, name string) *corev1.Event {
		t.Helper()
		involved := corev1.ObjectReference{Kind: "Pod", Namespace: ns, Name: "x"}
		made, err := s.client.CoreV1().Events(ns).Create(t.Context(), &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: name}, InvolvedObject: involved}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	if _, err := create(s, "before"); err != nil {
		t.Fatal(err)
	}
	seen := event(s, "seen")
	event(s, "missed")
	s.stop(t)
	s = start(t, dir, flags...)
	if got, err := s.client.CoreV1().Events(ns).Get(t.Context(), "seen", metav1.GetOptions{}); err != nil || got.ResourceVersion != seen.ResourceVersion {
		t.Errorf("after a restart the object has the version %s, want %s (%v)", got.ResourceVersion, seen.ResourceVersion, err)
	}
	event(s, "after")
	// Events are the resource without a watch cache: this watch reads history that the storage kept. A cache that has just
	// started knows none, so the API server answers such a watch of any other resource with "too old", whatever the storage.
	watcher, err := s.client.CoreV1().Events(ns).Watch(t.Context(), metav1.ListOptions{ResourceVersion: seen.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"missed", "after"} {
		select {
		case got := <-watcher.ResultChan():
			object, ok := got.Object.(*corev1.Event)
			if !ok || got.Type != watch.Added || object.Name != want {
				t.Fatalf("the watch sends %v, want %s added", got, want)
			}
		case <-time.After(patience):
			t.Fatalf("the watch does not send %s", want)
		}
	}
	watcher.Stop()

	acknowledged := killWhileWriting(t, s, create)
	s = start(t, dir, flags...)
	list, err := s.client.CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, item := range list.Items {
		found[item.Name] = true
	}
	for _, name := range append(acknowledged, "before") {
		if !found[name] {
			t.Errorf("%s was acknowledged and is lost", name)
		}
	}
	s.stop(t)
}

// killWhileWriting kills the server in the middle of many writes and returns the names of those that it acknowledged.
func killWhileWriting(t *testing.T, s *server, create func(*server, string) (*corev1.ConfigMap, error)) []string {
	t.Helper()
	const workers, enough = 8, 200
	var (
		mu           sync.Mutex // guards acknowledged
		acknowledged []string
		writers      sync.WaitGroup
		reached      = make(chan struct{})
	)
	for worker := range workers {
		writers.Go(func() {
			for i := 0; ; i++ {
				name := fmt.Sprintf("kill-%d-%d", worker, i)
				if _, err := create(s, name); err != nil {
					return // the server is gone
				}
				mu.Lock()
				acknowledged = append(acknowledged, name)
				if len(acknowledged) == enough {
					close(reached)
				}
				mu.Unlock()
			}
		})
	}
	select {
	case <-reached:
	case <-time.After(patience):
		t.Fatal("the server does not get on with the writes")
	}
	s.kill(t)
	writers.Wait()
	return acknowledged
}
