package lifecycle

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestHolding follows leases of 15 seconds, as the holder's clock and ours tell the time.
func TestHolding(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	lease := func(version string, renewed time.Duration) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{ResourceVersion: version}, Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To("manager"), LeaseDurationSeconds: ptr.To[int32](15), RenewTime: ptr.To(metav1.NewMicroTime(now.Add(renewed * time.Second))),
		}}
	}
	released := lease("3", 0)
	released.Spec.HolderIdentity = ptr.To("")
	type look struct {
		after time.Duration // seconds since the beginning
		lease *coordinationv1.Lease
		want  time.Duration // seconds that are left
	}
	for name, looks := range map[string][]look{
		"no lease":                        {{0, nil, 0}},
		"released":                        {{0, released, 0}},
		"held, then released":             {{0, lease("1", 0), 15}, {1, released, 0}},
		"held, then deleted":              {{0, lease("1", 0), 15}, {1, nil, 0}},
		"not renewed":                     {{0, lease("1", 0), 15}, {10, lease("1", 0), 5}, {15, lease("1", 0), 0}},
		"renewed":                         {{0, lease("1", 0), 15}, {10, lease("2", 10), 15}},
		"expired before the first look":   {{0, lease("1", -60), -45}},
		"held for a while":                {{0, lease("1", -5), 10}},
		"holder's clock an hour ahead":    {{0, lease("1", 3600), 15}, {15, lease("1", 3600), 0}},
		"holder's clock an hour behind":   {{0, lease("1", -3600), 15 - 3600}, {2, lease("2", -3598), 15}},
		"held again after it was deleted": {{0, lease("1", 0), 15}, {1, nil, 0}, {2, lease("4", 2), 15}},
	} {
		t.Run(name, func(t *testing.T) {
			var h holding
			for _, l := range looks {
				left := h.observe(l.lease, now.Add(l.after*time.Second))
				if l.want == 0 && left > 0 || l.want != 0 && left != l.want*time.Second {
					t.Errorf("after %ds it is held for %s more, want %ds", l.after, left, l.want)
				}
			}
		})
	}
}
