package actions_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/actions"
	"hinit/internal/backoff"
	"hinit/internal/config"
	"hinit/internal/testkit"
)

// runnerTest is a Runner with a hinit whose status the test sets.
type runnerTest struct {
	t         *testing.T
	stateFile string
	changes   chan client.StatusChange
	log       *logBuffer
	stop      func() // ends the Runner and waits for it
}

type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// startRunner starts a Runner with these actions for the event "parked".
func startRunner(t *testing.T, state string, parked ...config.Action) *runnerTest {
	t.Helper()
	b := &runnerTest{t: t, stateFile: state, changes: make(chan client.StatusChange), log: &logBuffer{}}
	first := true
	r := &actions.Runner{
		Watch: func(ctx context.Context, fn func(client.StatusChange) error) error {
			for {
				select {
				case c := <-b.changes:
					if err := fn(c); err != nil {
						return err
					}
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		},
		ReadConfig: func() (*config.Config, error) {
			if !first {
				return nil, nil
			}
			first = false
			return &config.Config{Actions: config.Actions{config.EventParked: parked}}, nil
		},
		StateFile: state, Host: "box", Log: slog.New(slog.NewTextHandler(b.log, nil)), RetryDelays: backoff.Policy{Initial: time.Millisecond, Factor: 1, Max: time.Millisecond},
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	b.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(b.stop)
	return b
}

// reportParked reports that services are parked after run n.
func (b *runnerTest) reportParked(n int, names ...string) {
	c := client.StatusChange{Init: client.Init{UptimeSeconds: 500}}
	code := 78
	for _, name := range names {
		s := endedService(n, "config", client.StateParked)
		s.Name, s.Profile, s.Reason, s.LastExit.Code = name, "coder", "exit code 78", &code
		s.LastExit.Tail = []string{"token ghp_" + strings.Repeat("a1", 18), "bye"}
		s.LastExit.Error = "cannot start --token=ghp_" + strings.Repeat("a1", 18)
		c.Services = append(c.Services, s)
	}
	b.changes <- c
}

func (b *runnerTest) awaitLogged(text string, times int) {
	b.t.Helper()
	testkit.Until(b.t, fmt.Sprintf("the log has %q %d times", text, times), func() bool { return strings.Count(b.log.String(), text) >= times })
}

func (b *runnerTest) awaitJobs(want int) {
	b.t.Helper()
	testkit.Until(b.t, fmt.Sprintf("%d jobs are waiting", want), func() bool {
		text, err := os.ReadFile(b.stateFile)
		var s struct{ Jobs []any }
		return err == nil && json.Unmarshal(text, &s) == nil && len(s.Jobs) == want
	})
}

// A message must contain the last lines that the service wrote, even if hinit reads them only after the status has reported the
// exit.
func TestAMessageHasTheLastLinesThatAreReadAfterTheEnd(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	b := startRunner(t, filepath.Join(t.TempDir(), "state"), config.Action{Exec: []string{"sh", "-c", "cat >>" + out}, Timeout: 20 * time.Second})
	c := client.StatusChange{Init: client.Init{UptimeSeconds: 500}}
	for _, name := range []string{"silent", "web"} {
		s := endedService(1, "config", client.StateParked)
		s.Name, s.LastExit.TailPending, s.LastExit.EndedAt = name, true, time.Now()
		c.Services = append(c.Services, s)
	}
	b.changes <- c
	for i, lines := range [][]string{nil, {"about to fail"}} {
		s := c.Services[i]
		exit := *s.LastExit
		exit.Tail, exit.TailPending = lines, false
		s.LastExit = &exit
		b.changes <- client.StatusChange{Init: c.Init, Services: []client.Service{s}}
	}
	b.awaitLogged("msg=done", 2)
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"service":"silent"`, `"service":"web"`, `"tail":[]`, `"tail":["about to fail"]`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is missing in %s", want, text)
		}
	}
}

func webhookAction(url string) config.Action {
	return config.Action{Webhook: url, Timeout: 20 * time.Second}
}

func TestAWebhookIsSignedAndTriedAgain(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("key\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	type request struct {
		body      []byte
		signature string
	}
	got := make(chan request, 20)
	var tries atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		switch tries.Add(1) {
		case 1:
			w.WriteHeader(http.StatusServiceUnavailable)
		case 2:
			w.WriteHeader(http.StatusTooManyRequests)
		case 3:
			panic(http.ErrAbortHandler)
		case 4:
			<-q.Context().Done()
		default:
			got <- request{body, q.Header.Get(actions.SignatureHeader)}
		}
	}))
	defer server.Close()
	a := webhookAction(server.URL + "/very-secret")
	a.SecretFile, a.Timeout = secret, 500*time.Millisecond
	b := startRunner(t, filepath.Join(t.TempDir(), "state"), a)
	b.reportParked(1, "gateway-coder")
	r := <-got
	mac := hmac.New(sha256.New, []byte("key"))
	mac.Write(r.body)
	if want := "sha256=" + hex.EncodeToString(mac.Sum(nil)); r.signature != want {
		t.Errorf("the signature is %q, want %q", r.signature, want)
	}
	var m actions.Message
	if err := json.Unmarshal(r.body, &m); err != nil {
		t.Fatal(err)
	}
	if m.ID == "" || m.Event != "parked" || m.Service != "gateway-coder" || m.Profile != "coder" || m.State != "parked" || m.Cause != "config" || *m.Exit.Code != 78 ||
		m.Container != "box" || m.Reason != "exit code 78" || m.At.IsZero() || len(m.Tail) != 2 || m.Tail[1] != "bye" {
		t.Errorf("the message is %s", r.body)
	}
	if strings.Contains(string(r.body), "ghp_") || !strings.Contains(m.Tail[0], "***") {
		t.Errorf("a token is in the message: %s", r.body)
	}
	b.awaitJobs(0)
	b.awaitLogged("msg=done", 1)
	if strings.Contains(b.log.String(), "very-secret") {
		t.Errorf("the address is in the log:\n%s", b.log)
	}
}

func TestAHangingTargetHoldsUpNoOther(t *testing.T) {
	release := make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer hangs.Close()
	defer close(release)
	got := make(chan struct{}, 10)
	works := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { got <- struct{}{} }))
	defer works.Close()
	b := startRunner(t, filepath.Join(t.TempDir(), "state"), webhookAction(hangs.URL), webhookAction(works.URL))
	for n := range 3 {
		b.reportParked(n, "web")
		<-got
	}
	b.awaitJobs(3)
	b.stop()
}

// A FIFO in place of the file with the key of a webhook must cause an error at once. Opening a FIFO waits for a writer, and
// would also delay the end of the program.
func TestAPipeInPlaceOfAKeyIsNotWaitedFor(t *testing.T) {
	a := webhookAction("http://127.0.0.1:1")
	a.SecretFile = filepath.Join(t.TempDir(), "key")
	if err := unix.Mkfifo(a.SecretFile, 0o600); err != nil {
		t.Fatal(err)
	}
	b := startRunner(t, filepath.Join(t.TempDir(), "state"), a)
	b.reportParked(1, "web")
	b.awaitLogged("cannot read the secret", 1)
	b.stop()
}

// A request must not be signed with the empty key of a truncated file. Such a signature proves nothing, and a receiver with the
// right key refuses the request for good.
func TestARequestWasSignedWithTheEmptyKeyOfATruncatedFile(t *testing.T) {
	got := make(chan struct{}, 10)
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { got <- struct{}{} }))
	defer server.Close()
	a := webhookAction(server.URL)
	a.SecretFile = filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(a.SecretFile, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := startRunner(t, filepath.Join(t.TempDir(), "state"), a)
	b.reportParked(1, "web")
	b.awaitLogged("cannot read the secret: the file is empty", 1)
	if err := os.WriteFile(a.SecretFile, []byte("key\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	<-got
	b.stop()
}

// hangingServer returns the address of a server that answers no request until the test ends.
func hangingServer(t *testing.T) string {
	t.Helper()
	release := make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	t.Cleanup(hangs.Close)
	t.Cleanup(func() { close(release) })
	return hangs.URL
}

func TestTheQueueIsBounded(t *testing.T) {
	b := startRunner(t, filepath.Join(t.TempDir(), "state"), webhookAction(hangingServer(t)))
	b.reportParked(1, "first")
	for n := range 104 {
		b.reportParked(n, "web")
	}
	b.awaitJobs(100)
	b.awaitLogged("dropped=5", 1)
	if text, _ := os.ReadFile(b.stateFile); strings.Count(string(text), `"service":"first"`) != 1 {
		t.Error("what is being delivered was dropped")
	}
	b.stop()
}

// When the queue is full, the events of one service may displace only that service's own alerts. A tenant whose gateway fails
// all the time must not displace the alerts of other services.
func TestTheEventsOfOneServicePushedTheAlertsOfOthersOut(t *testing.T) {
	b := startRunner(t, filepath.Join(t.TempDir(), "state"), webhookAction(hangingServer(t)))
	b.reportParked(1, "first")
	b.reportParked(1, "payments")
	for n := range 150 {
		b.reportParked(n, "flood")
	}
	b.reportParked(2, "payments")
	b.awaitJobs(100)
	b.awaitLogged("dropped=53", 1)
	testkit.Until(t, "both alerts are left", func() bool {
		text, _ := os.ReadFile(b.stateFile)
		return strings.Count(string(text), `"service":"payments"`) == 2
	})
	b.stop()
}

// If the receiver fails on the alert of one service, the alerts of other services must still be sent. The ten tries of one
// alert may take nine minutes.
func TestAnAlertThatTheReceiverCannotTakeHoldsUpNoOtherService(t *testing.T) {
	type request struct{ service, id string }
	got := make(chan request, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		var m actions.Message
		_ = json.NewDecoder(q.Body).Decode(&m)
		if m.Service == "bad" {
			w.WriteHeader(http.StatusInternalServerError)
		}
		got <- request{m.Service, m.ID}
	}))
	defer server.Close()
	b := startRunner(t, filepath.Join(t.TempDir(), "state"), webhookAction(server.URL))
	b.reportParked(1, "bad", "payments")
	first := <-got
	if second := <-got; first.service != "bad" || second.service != "payments" {
		t.Errorf("after %v came %v", first, second)
	}
	b.reportParked(2, "bad")
	for range 9 {
		if again := <-got; again != first { // alerts of one service must stay in order
			t.Errorf("%v came before %v was given up", again, first)
		}
	}
	b.awaitLogged("given up after 10 tries", 2)
	b.awaitJobs(0)
}

// An alert that failed once must be tried again in time, even while another service causes new events all the time.
func TestAnAlertThatFailedOnceWaitedBehindEachNewEventOfATenant(t *testing.T) {
	got, answer, over := make(chan string), make(chan int), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		var m actions.Message
		_ = json.NewDecoder(q.Body).Decode(&m)
		select {
		case got <- m.Service:
			w.WriteHeader(<-answer)
		case <-over:
		}
	}))
	defer server.Close()
	b := startRunner(t, filepath.Join(t.TempDir(), "state"), webhookAction(server.URL))
	b.reportParked(1, "payments")
	for n, status := 1, http.StatusInternalServerError; ; n++ {
		if service := <-got; service == "payments" && n > 1 {
			break
		}
		if n > 10 {
			t.Error("the alert was not sent again after 10 requests")
			break
		}
		b.reportParked(n, "flood") // a new event always waits
		b.awaitJobs(min(n, 2) + 1)
		answer <- status
		status = http.StatusOK
	}
	close(over)
	answer <- http.StatusOK
	b.awaitJobs(0)
}

func TestARefusedActionIsNotRepeated(t *testing.T) {
	var failed, refused atomic.Int32
	fails := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		failed.Add(1)
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer fails.Close()
	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		refused.Add(1)
		w.Header().Set("Location", fails.URL)
		w.WriteHeader(http.StatusFound)
	}))
	defer refuses.Close()
	b := startRunner(t, filepath.Join(t.TempDir(), "state"), webhookAction(fails.URL), webhookAction(refuses.URL))
	b.reportParked(1, "web")
	b.awaitLogged("given up after 10 tries: the answer is 500", 1)
	b.awaitLogged("it is refused: the answer is 302", 1)
	b.awaitJobs(0)
	if failed.Load() != 10 || refused.Load() != 1 {
		t.Errorf("%d and %d requests, want 10 and 1", failed.Load(), refused.Load())
	}
}

func TestACommandGetsTheEvent(t *testing.T) {
	dir := t.TempDir()
	good := config.Action{Exec: []string{"sh", "-c", `cat >"$0/in"; echo "$HINIT_EVENT $HINIT_SERVICE $HINIT_PROFILE" >"$0/vars"`, dir}, Timeout: 20 * time.Second}
	bad := config.Action{Exec: []string{"sh", "-c", "exit 3"}, Timeout: 20 * time.Second}
	none := config.Action{Exec: []string{"/no/such/program"}, Timeout: 20 * time.Second}
	slow := config.Action{Exec: []string{"sh", "-c", "sleep 1009 & wait"}, Timeout: 50 * time.Millisecond}
	b := startRunner(t, filepath.Join(dir, "state"), good, bad, none, slow)
	b.reportParked(1, "web")
	b.awaitLogged("msg=done", 1)
	b.awaitLogged("exit code 3", 1)
	b.awaitLogged("no such file", 1)
	b.awaitLogged("it was killed after 50ms", 1)
	b.awaitJobs(0)
	var m actions.Message
	if text, err := os.ReadFile(filepath.Join(dir, "in")); err != nil || json.Unmarshal(text, &m) != nil || m.Service != "web" {
		t.Errorf("its input is %q: %v", text, err)
	}
	if text, _ := os.ReadFile(filepath.Join(dir, "vars")); string(text) != "parked web coder\n" {
		t.Errorf("its variables are %q", text)
	}
}

// All actions for one event must send the same id. With an id for each action, a receiver of two of them would count one event
// twice.
func TestTwoActionsForOneEventSendItsID(t *testing.T) {
	dir := t.TempDir()
	store := func(name string) config.Action {
		return config.Action{Exec: []string{"sh", "-c", `cat >"$0"`, filepath.Join(dir, name)}, Timeout: 20 * time.Second}
	}
	b := startRunner(t, filepath.Join(dir, "state"), store("one"), store("two"))
	b.reportParked(1, "web")
	b.awaitJobs(0)
	b.awaitLogged("msg=done", 2)
	one, _ := os.ReadFile(filepath.Join(dir, "one"))
	two, _ := os.ReadFile(filepath.Join(dir, "two"))
	if len(one) == 0 || !bytes.Equal(one, two) {
		t.Errorf("one action got %s, and the other %s", one, two)
	}
}

// Jobs must survive the end of the program. The Runner writes the state file before it sends anything, so kill -9 loses nothing
// either.
func TestWhatIsNotDeliveredIsKept(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	var works atomic.Bool
	got := make(chan string, 10)
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		if !works.Load() {
			<-release
			return
		}
		body, _ := io.ReadAll(q.Body)
		var m actions.Message
		_ = json.Unmarshal(body, &m)
		got <- m.Service
	}))
	defer server.Close()
	b := startRunner(t, state, webhookAction(server.URL))
	b.reportParked(1, "web", "db")
	b.awaitJobs(2)
	killed, err := os.ReadFile(state)
	if err != nil {
		t.Fatal(err)
	}
	b.stop()
	close(release)
	if err := os.WriteFile(state, killed, 0o600); err != nil {
		t.Fatal(err)
	}
	works.Store(true)
	b = startRunner(t, state, webhookAction(server.URL))
	if first, second := <-got, <-got; first != "web" || second != "db" {
		t.Errorf("delivered: %s, %s", first, second)
	}
	b.awaitJobs(0)
	b.reportParked(1, "web", "db") // the state file records these events, so they must not be delivered again
	b.reportParked(2, "db")
	if s := <-got; s != "db" {
		t.Errorf("delivered: %s", s)
	}
	b.awaitJobs(0)
	if len(got) > 0 {
		t.Errorf("delivered again: %s", <-got)
	}
}
