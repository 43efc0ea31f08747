package show

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
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
		if got := stateCell(&c.s, VerdictOf(&c.s)); got != c.want {
			t.Errorf("%+v: %q, want %q", c.s, got, c.want)
		}
	}
}

// The columns of the status must be aligned, and no line may end in blanks. Virtual time keeps the ages equal in both
// outputs.
func TestStatusLinesUpItsColumnsAndEndsNoLineInBlanks(t *testing.T) {
	synctest.Test(t, testColumnAlignment)
}

func testColumnAlignment(t *testing.T) {
	code := 1
	got := string(StatusTable(client.Status{
		Init: client.Init{Version: "1", PID: 1, UptimeSeconds: 3, Home: "/data"},
		Services: []client.Service{
			{Name: "gateway-coder", State: "up", Ready: true, Since: time.Now().Add(-90 * time.Second), PID: 12, MemoryBytes: 2_500_000},
			{Name: "gateway-ü", State: "down", Want: "up", Since: time.Now(), Reason: "why", LastExit: &client.Exit{Code: &code, Cause: "crash", EndedAt: time.Now()}},
		},
	}, Layout{}))
	want := `hinit 1, pid 1, up 3s, home /data
NAME           STATE  SINCE  PID  RESTARTS  MEMORY  LAST EXIT               NOTE
gateway-coder  up     1m30s  12   0         2.5 MB  -
gateway-ü      down   0s     -    0         -       code 1 (crash), 0s ago  why
`
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// Only a command that names the service may show its status text and settings.
func TestStatusOfANamedServiceHasDetails(t *testing.T) {
	st := client.Status{Services: []client.Service{{
		Name: "api", State: "up", Ready: true, StatusText: "3 \u202e of 4",
		Settings: []client.ConfigEntry{{Key: "nice", Value: 3}, {Key: "needs", Value: []string{"db"}}, {Key: "user", Value: "\x1bx"}},
	}}}
	named := string(StatusTable(st, Layout{NamesGiven: true}))
	for _, want := range []string{"api says: 3 \\u202e of 4\n", "settings of api:\n    nice 3\n    needs [\"db\"]\n    user \\x1bx\n"} {
		if !strings.Contains(named, want) {
			t.Errorf("there is no %q in\n%s", want, named)
		}
	}
	if all := string(StatusTable(st, Layout{})); strings.Contains(all, "says") || strings.Contains(all, "nice") {
		t.Errorf("the table of all is\n%s", all)
	}
}

func TestStatusWithoutServicesPrintsANotice(t *testing.T) {
	if got := string(StatusTable(client.Status{}, Layout{})); !strings.HasSuffix(got, "\nno services\n") {
		t.Errorf("got %q", got)
	}
}

func TestTimeline(t *testing.T) {
	got := BootTimeline([]client.BootStep{
		{Name: "control", Seconds: 0.7, Parallel: true},
		{Name: "home", Seconds: 0.1},
		{Name: "a", Seconds: 0.8},
		{Name: "b", Seconds: 0.5, Parallel: true, Error: "no"},
		{Name: "c", Seconds: 0.9, Parallel: true},
		{Name: "d", Seconds: 0.004, Skipped: true},
	})
	if want := "1.004s (home 100ms, c 900ms, a 800ms beside it, b 500ms FAILED beside it, d unchanged 4ms; meanwhile control 700ms)"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// The parts of the boot in the status must add up to the total. Rounding each part down would lose 4 of 43 ms.
func TestTheLineOfTheBootAddsUp(t *testing.T) {
	var steps []client.BootStep
	for i := range 12 {
		steps = append(steps, client.BootStep{Name: fmt.Sprint("step", i), Seconds: 0.0037})
	}
	total, parts, _ := strings.Cut(BootTimeline(steps), "s (")
	sum := 0
	for part := range strings.SplitSeq(strings.TrimSuffix(parts, ")"), ", ") {
		ms, err := strconv.Atoi(strings.TrimSuffix(part[strings.LastIndexByte(part, ' ')+1:], "ms"))
		if err != nil {
			t.Fatal(err)
		}
		sum += ms
	}
	if want := fmt.Sprintf("0.%03d", sum); total != want || sum != 44 {
		t.Errorf("%s s of parts of %d ms together", total, sum)
	}
}

func longStatus() client.Status {
	code := 1
	long := strings.Repeat("a reason that is long ", 6)
	st := client.Status{Init: client.Init{
		Version: "v1.2.3 (0123456789ab) go1.26.8", PID: 1, UptimeSeconds: 3, Home: "/opt/data", Warnings: []string{long},
		Boot: []client.BootStep{{Name: "home", Seconds: 0.1}},
	}}
	for _, name := range []string{"dashboard", "gateway-default", "gateway-" + strings.Repeat("long", 12), "gateway-名前"} {
		for _, state := range []string{"up", "failed", "backoff"} {
			st.Services = append(st.Services, client.Service{
				Name: name, State: state, Ready: true, PID: 12345, Since: time.Now(), Restarts: 12, MemoryBytes: 1e8, Reason: long,
				CrashLoop: state == "backoff", LastExit: &client.Exit{Code: &code, Cause: "crash", EndedAt: time.Now()},
			})
		}
	}
	return st
}

func TestStatusFitsTheTerminal(t *testing.T) {
	for width := 40; width < 300; width++ {
		for _, named := range []bool{false, true} {
			got := string(StatusTable(longStatus(), Layout{Width: width, NamesGiven: named}))
			for line := range strings.Lines(got) {
				if n := textColumns(strings.TrimSuffix(line, "\n")); n > width {
					t.Fatalf("%d columns, named %v: this one has %d: %q", width, named, n, line)
				}
			}
			for _, word := range []string{"NAME", "STATE", "gateway-def", "failed", "backoff (crash-loop)"} {
				if !strings.Contains(got, word) {
					t.Fatalf("%d columns, named %v: no %q in\n%s", width, named, word, got)
				}
			}
			plain := strings.Join(strings.Fields(got), " ")
			// The reason appears five times: in the warning, and for four failed services.
			if why := strings.TrimSpace(strings.Repeat("a reason that is long ", 6)); named && strings.Count(plain, why) < 5 {
				t.Fatalf("%d columns: the reasons are not whole in\n%s", width, got)
			}
		}
	}
}

func TestStatusHasColoursWhereTheyAreWanted(t *testing.T) { synctest.Test(t, testColours) }

func testColours(t *testing.T) {
	st := longStatus()
	got := string(StatusTable(st, Layout{Colour: true}))
	if !strings.Contains(got, "\x1b[32mup\x1b[0m ") || !strings.Contains(got, "\x1b[31mfailed\x1b[0m ") || strings.Contains(got, "\x1b[33mSTATE") {
		t.Errorf("%q", got)
	}
	plain := strings.NewReplacer("\x1b[31m", "", "\x1b[32m", "", "\x1b[33m", "", "\x1b[0m", "").Replace(got)
	if want := string(StatusTable(st, Layout{})); plain != want {
		t.Errorf("without its colours it is\n%s\nnot\n%s", plain, want)
	}
}

func TestTheBootStepsAreShownOnlyOnRequest(t *testing.T) {
	if got := string(StatusTable(longStatus(), Layout{})); strings.Contains(got, "boot:") {
		t.Error(got)
	}
	if got := string(StatusTable(longStatus(), Layout{Verbose: true})); !strings.Contains(got, "\nboot: 0.100s (home 100ms)\n") {
		t.Error(got)
	}
}
