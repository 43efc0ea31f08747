package web

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"hinit/internal/testkit"
)

const counter = `
services:
  counter:
    command: [/bin/sh, -c, 'i=0; while [ $i -lt 30000 ]; do i=$((i+1)); echo "line $i ...................................................................."; done; exec sleep 1000']
logs: {dir: $DIR/logs, max_size_mb: 1, archives: 20, compress: gzip}
`

// receiver is an OTLP receiver that sometimes fails.
type receiver struct {
	mu    sync.Mutex
	calls int
	seen  map[string]int
}

// ServeHTTP implements http.Handler.
func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	var doc struct {
		ResourceLogs []struct {
			ScopeLogs []struct {
				LogRecords []struct {
					Body struct{ StringValue string }
				}
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls++; err != nil || json.Unmarshal(body, &doc) != nil || r.calls%5 == 4 {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	for _, resource := range doc.ResourceLogs {
		for _, scope := range resource.ScopeLogs {
			for _, record := range scope.LogRecords {
				r.seen[record.Body.StringValue]++
			}
		}
	}
	if r.calls%7 == 6 { // The receiver has stored the lines, but its answer gets lost.
		if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
			_ = conn.Close()
		}
	}
}

func (r *receiver) count() (lines, twice int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for text, n := range r.seen {
		if len(text) > 60 {
			lines++
			twice += n - 1
		}
	}
	return lines, twice
}

// TestNoLineIsLostWhenTheForwarderIsKilled checks that every line arrives although the forwarder is killed with kill -9
// repeatedly, while the log is rotated and compressed.
func TestNoLineIsLostWhenTheForwarderIsKilled(t *testing.T) {
	b := newWebContainer(t, counter)
	r := &receiver{seen: make(map[string]int)}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	for kills := 0; ; kills++ {
		cmd, _ := b.start("hinit-web", "forward", "--to", "otlp+"+server.URL, "--state", b.dir+"/state.json")
		before, _ := r.count()
		testkit.Until(t, "some lines", func() bool { n, _ := r.count(); return n > before+500 || n == 30000 })
		n, twice := r.count()
		if n == 30000 && kills >= 3 {
			t.Logf("killed %d times: 30000 lines came, and %d of them again", kills, twice)
			return
		}
		if kills > 200 {
			t.Fatalf("killed %d times, and %d lines came", kills, n)
		}
		kill(t, cmd)
	}
}
