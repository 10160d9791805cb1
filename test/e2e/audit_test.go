package e2e

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// readAudit reads the events in an audit log, except for one that is still being written.
func readAudit(t *testing.T, path string) []auditv1.Event {
	t.Helper()
	log, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var events []auditv1.Event
	for line := range strings.Lines(string(log)) {
		if !strings.HasSuffix(line, "\n") {
			break
		}
		var event auditv1.Event
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatalf("the audit log has the line %q: %v", line, err)
		}
		events = append(events, event)
	}
	return events
}
