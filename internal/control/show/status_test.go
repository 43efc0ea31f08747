package show

import (
	"strings"
	"testing"
	"time"

	"hinit/client"
)

func TestStatusSaysWhatAStateMeansForTheReader(t *testing.T) {
	for _, c := range []struct {
		s    client.Service
		want string
	}{
		{client.Service{State: client.StateUp, Ready: true}, "up"},
		{client.Service{State: client.StateUp}, "up (not ready)"},
		{client.Service{State: client.StateUp, Ready: true, Paused: true}, "up (paused)"},
		{client.Service{State: client.StateBackoff, CrashLoop: true}, "backoff (crash-loop)"},
		{client.Service{State: client.StateFinishing}, "finishing"},
	} {
		if got := stateWord(&c.s); got != c.want {
			t.Errorf("%+v: %q, want %q", c.s, got, c.want)
		}
	}
}

func TestStatusLinesUpItsColumnsAndEndsNoLineInBlanks(t *testing.T) {
	code := 1
	got := string(Status(client.Status{
		Init: client.Init{Version: "1", PID: 1, UptimeSeconds: 3, Home: "/data"},
		Services: []client.Service{
			{Name: "gateway-coder", State: "up", Ready: true, Since: time.Now().Add(-90 * time.Second), PID: 12, MemoryBytes: 2_500_000},
			{Name: "gateway-ü", State: "down", Want: "up", Since: time.Now(), Reason: "why", LastExit: &client.Exit{Code: &code, Cause: "crash", At: time.Now()}},
		},
	}))
	want := `hinit 1, pid 1, up 3s, home /data
NAME           STATE  SINCE  PID  RESTARTS  MEMORY  LAST EXIT               NOTE
gateway-coder  up     1m30s  12   0         2.5 MB  -
gateway-ü      down   0s     -    0         -       code 1 (crash), 0s ago  why
`
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestStatusOfNothingSaysSo(t *testing.T) {
	if got := string(Status(client.Status{})); !strings.HasSuffix(got, "\nno services\n") {
		t.Errorf("got %q", got)
	}
}
