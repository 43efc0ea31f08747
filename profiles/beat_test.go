package profiles

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestOnlyTheGatewayBeats checks that only the gateway's own writes of the state file count as
// heartbeats.
func TestOnlyTheGatewayBeats(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		`"2026-11-21T00:08:46.710169+00:00"`: "2026-11-21T00:08:46.710169Z",
		`"2026-11-21T02:08:46+02:00"`:        "2026-11-21T00:08:46Z",
		`"2026-11-21T00:08:46.5"`:            "2026-11-21T00:08:46.5Z",
		`1763683726`:                         "",
		`"soon"`:                             "",
		`null`:                               "",
		`{}`:                                 "",
	} {
		st, err := parseState([]byte(`{"updated_at":` + value + `}`))
		got := ""
		if !st.Heartbeat.IsZero() {
			got = st.Heartbeat.UTC().Format(time.RFC3339Nano)
		}
		if err != nil || got != want {
			t.Errorf("%s: %q, %v, expected %q", value, got, err, want)
		}
	}
}

func TestTheWatcherTellsHeartbeats(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s := Open(root, nil, "SOUL.md")
	write := func(at string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root, StateFile), []byte(`{"gateway_state":"running","updated_at":"`+at+`"}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("2026-11-21T00:00:01+00:00")
	beats := make(chan string, 100)
	w := s.Watch(t.Context(), WatchOptions{Notify: func(e Event) {
		if b, is := e.(Heartbeat); is {
			beats <- b.Profile.Name
		}
	}})
	look := func(want int) {
		t.Helper()
		if err := w.Rescan(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(beats) != want {
			t.Errorf("%d heartbeats, expected %d", len(beats), want)
		}
	}
	look(1)
	if err := s.SetDesired(Default, Running); err != nil {
		t.Fatal(err)
	}
	look(1)
	write("2026-11-21T00:00:31+00:00")
	look(2)
	look(2)
}
