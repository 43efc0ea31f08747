package reexec_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hinit/internal/reexec"
	"hinit/internal/testkit"
)

// host records its calls.
type host struct {
	mu          sync.Mutex
	requests    []string
	handOverErr error // error of HandOver
	lateSignals []syscall.Signal
	answer      string // answer of each tried program
	past        reexec.PastGenerations
	ended       chan string
}

func newHost() *host { return &host{ended: make(chan string, 1)} }

func (h *host) recordCall(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requests = append(h.requests, what)
}

func (h *host) LockConfig(context.Context) (func(), error) {
	h.recordCall("claim")
	return func() { h.recordCall("release"); h.ended <- "" }, nil
}

func (h *host) Quiesce(fault bool) (func(), error) {
	h.recordCall(fmt.Sprintf("rest %v", fault))
	return func() { h.recordCall("wake") }, nil
}

func (h *host) TryProgram(_ context.Context, _ string, argv ...string) (int, string, error) {
	h.recordCall("try " + strings.Join(argv, " "))
	return 0, h.answer, nil
}

func (h *host) RunInLoop(f func()) error { h.recordCall("yield"); f(); return nil }

func (h *host) HandOver(past reexec.PastGenerations, _ bool) (any, func(), error) {
	h.recordCall("hand over")
	h.past = past
	return &past, func() { h.recordCall("thaw") }, h.handOverErr
}

func (h *host) TakePending() []syscall.Signal { h.recordCall("take late"); return h.lateSignals }

func (h *host) PutBack(late []syscall.Signal)              { h.recordCall(fmt.Sprint("put back ", late)) }
func (h *host) LastEvents() string                         { return "none" }
func (h *host) Say(line string)                            { h.recordCall(line) }
func (h *host) End(code int, reason string)                { h.ended <- fmt.Sprint(code, " ", reason) }
func (h *host) StoreReport(string, []byte) (string, error) { return "/report", nil }

func (h *host) messages() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.requests, ", ")
}

func TestABrokenProgramChangesNothing(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "hinit")
	own, err := os.ReadFile(reexec.SelfExe)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(broken, own[:64], 0o700); err != nil { // the file consists only of an ELF header
		t.Fatal(err)
	}
	h := newHost()
	h.lateSignals, h.answer = []syscall.Signal{syscall.SIGHUP}, strconv.Itoa(reexec.StateFormat)
	g := reexec.FirstGeneration(h, []syscall.Signal{syscall.SIGUSR1})
	if _, err := g.Request(t.Context(), broken); err == nil || !strings.Contains(err.Error(), "the boot is not done") {
		t.Fatalf("during the boot: %v", err)
	}
	g.MarkBootDone()
	for path, why := range map[string]string{"relative": "not an absolute path", "/nowhere": "no such file", "/proc/self/status": "not an executable"} {
		if _, err := g.Request(t.Context(), path); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if n, err := g.Request(t.Context(), broken); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	<-h.ended
	if why := g.Refusal(); !strings.Contains(why, strconv.Quote(broken)+": cannot execute") {
		t.Errorf("refused: %q", why)
	}
	want := "claim, try hinit version --handover, rest false, yield, hand over, take late, put back [hangup], thaw, wake, [hinit] cannot become another image: " +
		g.Refusal() + "; the old program continues, release"
	if got := h.messages(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	h.answer, h.requests = "version --handover", nil
	testkit.Until(t, "the request has ended", func() bool {
		_, err := g.Request(t.Context(), broken)
		return err == nil
	})
	<-h.ended
	if why := g.Refusal(); !strings.Contains(why, `it answers "version --handover"`) || strings.Contains(h.messages(), "hand over,") {
		t.Errorf("a program that is no hinit: %q; %s", why, h.messages())
	}
	if h.past.Number != 1 || h.past.Format != reexec.StateFormat || h.past.Exe == "" || h.past.Comm == "" || h.past.Cause == "" {
		t.Errorf("handed over: %+v", h.past)
	}
}

// concurrentFaultHost is a host whose requested re-execution waits in HandOver until a fault wants one, too.
type concurrentFaultHost struct {
	*host
	panicked chan struct{}
}

func (h *concurrentFaultHost) Quiesce(afterPanic bool) (func(), error) {
	if afterPanic {
		close(h.panicked)
	}
	return func() {}, nil
}

func (h *concurrentFaultHost) HandOver(reexec.PastGenerations, bool) (any, func(), error) {
	<-h.panicked
	return nil, func() {}, errors.New("no")
}

// A panic during a requested re-execution changed the list of faults, while the supervisor's goroutine read it. The race detector
// sees that.
func TestAFaultDuringARequestedReexecution(t *testing.T) {
	h := &concurrentFaultHost{newHost(), make(chan struct{})}
	h.ended = make(chan string, 2)
	g := reexec.FirstGeneration(h, nil)
	g.MarkBootDone()
	own, err := os.Readlink(reexec.SelfExe)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Request(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	g.Panicked("testing", "a fault", nil)
	for range 2 { // the end of the request, and the end of the container
		<-h.ended
	}
	if !g.Failed() {
		t.Error("the container keeps running after a fault without a successor")
	}
}

func TestAFaultEndsTheContainerInOrder(t *testing.T) {
	const said = "70 hinit has a fault"
	t.Run("during the boot", func(t *testing.T) {
		h := newHost()
		g := reexec.FirstGeneration(h, nil)
		g.Panicked("testing", "a fault", nil)
		if got := <-h.ended; got != said || !g.Failed() || strings.Contains(h.messages(), "rest") {
			t.Errorf("%s: %s", got, h.messages())
		}
	})
	t.Run("when nothing can be handed over", func(t *testing.T) {
		h := newHost()
		h.handOverErr = errors.New("no")
		g := reexec.FirstGeneration(h, nil)
		g.MarkBootDone()
		g.Panicked("testing", "a fault", nil)
		g.Panicked("testing", "another one meanwhile", nil)
		if got := <-h.ended; got != said || !slices.Equal(h.requests, []string{"[hinit] the report of the fault is in /report", "rest true", "yield", "hand over", "thaw", "wake"}) {
			t.Errorf("%s: %s", got, h.messages())
		}
		if len(h.past.Faults) != 1 || h.past.Cause != "hinit had a fault while testing" {
			t.Errorf("handed over: %+v", h.past)
		}
	})
	t.Run("a minute after another", func(t *testing.T) {
		for age, again := range map[time.Duration]bool{59 * time.Second: false, 2 * time.Minute: true} {
			h := newHost()
			h.handOverErr = errors.New("no")
			g := reexec.FirstGeneration(h, nil)
			g.SetPast(reexec.PastGenerations{Number: 4, Faults: []time.Time{time.Now().Add(-age)}})
			g.SupervisorPanicked("a fault", nil)
			if tried := strings.Contains(h.messages(), "hand over"); tried != again || g.Number != 5 || !g.Failed() {
				t.Errorf("%v later: %s", age, h.messages())
			}
		}
	})
}
