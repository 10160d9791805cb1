package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/kubase/kubase/test/postgrestest"
)

// runsControllers is nil if the server says that it runs the lifecycle controllers, or that it does not, as wanted.
func (s *server) runsControllers(t *testing.T, want bool) error {
	metrics, err := s.client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		return err
	}
	if is := strings.Contains(string(metrics), "\nkubase_lifecycle_controllers_running 1\n"); is != want {
		return fmt.Errorf("runs the controllers: %v, want %v", is, want)
	}
	return nil
}

func (s *server) hasDefaultAccount(t *testing.T, ns string) error {
	_, err := s.client.CoreV1().ServiceAccounts(ns).Get(t.Context(), "default", metav1.GetOptions{})
	return err
}

// TestLifecycleStepsAside holds the lease of a kube-controller-manager and expects the server to leave the work to it, and
// to take it up again when the lease is given back or expires.
func TestLifecycleStepsAside(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir())
	eventually(t, "the server runs the controllers", func() error { return s.runsControllers(t, true) })

	ctx, leases := t.Context(), s.client.CoordinationV1().Leases("kube-system")
	hold := func(lease *coordinationv1.Lease, seconds int32) {
		lease.Spec.HolderIdentity = ptr.To("manager")
		lease.Spec.LeaseDurationSeconds = &seconds
		lease.Spec.RenewTime = ptr.To(metav1.NowMicro())
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "kube-controller-manager"}}
	hold(lease, 3600)
	lease, err := leases.Create(ctx, lease, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server steps aside", func() error { return s.runsControllers(t, false) })
	ns := s.namespace(t, "released")

	lease.Spec.HolderIdentity = nil
	if err := s.hasDefaultAccount(t, ns); gone(err) != nil {
		t.Errorf("a controller made the service account while another one should: %v", err)
	}
	if lease, err = leases.Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server takes over when the lease is released", func() error { return s.hasDefaultAccount(t, ns) })

	const seconds = 3
	hold(lease, 3600)
	if lease, err = leases.Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server steps aside again", func() error { return s.runsControllers(t, false) })
	ns = s.namespace(t, "expired")
	hold(lease, seconds)
	renewed := time.Now()
	if _, err = leases.Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server takes over when the lease expires", func() error { return s.hasDefaultAccount(t, ns) })
	if took := time.Since(renewed); took < seconds*time.Second {
		t.Errorf("the server took over after %s, while the lease of %d seconds was held", took, seconds)
	}
}

// TestLifecycleOff leaves everything to others.
func TestLifecycleOff(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir(), "--lifecycle-controllers=off")
	if err := s.runsControllers(t, false); err != nil {
		t.Error(err)
	}
	checks, err := s.client.Discovery().RESTClient().Get().AbsPath("/healthz").Param("verbose", "").DoRaw(t.Context())
	if err != nil || strings.Contains(string(checks), "lifecycle") {
		t.Errorf("the controllers are off and have a health check: %s (%v)", checks, err)
	}
}

// TestOneServerRunsTheControllers has two servers on one database. When the one that runs the controllers is killed, and
// when it is stopped, the other does.
func TestOneServerRunsTheControllers(t *testing.T) {
	t.Parallel()
	dir, dsn := t.TempDir(), "--datastore-dsn="+postgrestest.Database(t) // the keys are the cluster's
	startOne := func() *server {
		s := start(t, dir, dsn)
		// The next server writes its own address into the file.
		config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig)
		if err == nil {
			config.QPS = -1
			s.client, err = kubernetes.NewForConfig(config)
		}
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	first := startOne()
	eventually(t, "the first server runs the controllers", func() error { return first.runsControllers(t, true) })
	second := startOne()
	if err := errors.Join(first.runsControllers(t, true), second.runsControllers(t, false)); err != nil {
		t.Error(err)
	}
	first.kill(t)
	ns := second.namespace(t, "killed")
	eventually(t, "the second server runs the controllers", func() error {
		return errors.Join(second.runsControllers(t, true), second.hasDefaultAccount(t, ns))
	})

	third := startOne()
	began := time.Now()
	second.stop(t)
	ns = third.namespace(t, "stopped")
	eventually(t, "the third server runs the controllers", func() error {
		return errors.Join(third.runsControllers(t, true), third.hasDefaultAccount(t, ns))
	})
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("a lease that was given back was taken after %s", took)
	}
}

// TestKilledOwnerRunsTheControllers kills the only server of a SQLite file. Started again it knows the lease, which had most of a minute
// left, as its own.
func TestKilledOwnerRunsTheControllers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, dir)
	eventually(t, "the server runs the controllers", func() error { return s.runsControllers(t, true) })
	s.kill(t)
	s = start(t, dir)
	began := time.Now()
	eventually(t, "the server runs the controllers again", func() error { return s.runsControllers(t, true) })
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("the server waited %s for a lease of its own", took)
	}
}
