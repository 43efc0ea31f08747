package actions_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

// A null in place of an action in the state file must not end hinit-actions. Otherwise it ends at each start, and sends no
// alerts.
func TestANullInTheStateFileEndedAllAlerts(t *testing.T) {
	got := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { got <- struct{}{} }))
	defer server.Close()
	state := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(state, []byte(`{"marks":{"web":null},"stale":null,"jobs":[null,{"event":"parked","service":"web"},null]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	b := startRunner(t, state, webhookAction(server.URL))
	b.reportParked(1, "web")
	<-got
	b.awaitJobs(0)
}
