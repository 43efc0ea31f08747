package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/testkit"
	"hinit/supervisor"
)

func shortTimeouts(s *Server) {
	const little = 3 * time.Second
	s.http.ReadHeaderTimeout, s.http.IdleTimeout, s.bodyTimeout, s.sendTimeout = little, little, little, little
}

func noHeaderTimeout(s *Server) { s.http.ReadHeaderTimeout = time.Hour }

func TestClientsThatMisbehaveAreDropped(t *testing.T) {
	t.Parallel()
	many := make([]*supervisor.Service, 2000) // the answer is larger than every socket buffer
	for i := range many {
		many[i] = newGateway(strconv.Itoa(i), supervisor.Up)
	}
	core := newFakeBackend(many...)
	for name, tt := range map[string]struct {
		send string
		want string
	}{
		"silent":             {"", ""},
		"half a line":        {"GET /v1/st", "HTTP/1.1 400 Bad Request\r\n"},
		"half a header":      {"GET /v1/status HTTP/1.1\r\nHost: x\r\n", ""},
		"garbage":            {"\x00\xff\x16\x03\x01 nonsense\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n"},
		"no version":         {"GET /\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n"},
		"a huge header":      {"GET / HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n", "HTTP/1.1 431 "},
		"no body":            {"POST /v1/services/1/stop HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n"},
		"half a chunk":       {"POST /v1/rescan HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", "HTTP/1.1 400 Bad Request\r\n"},
		"no body, no route":  {"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n", "HTTP/1.1 404 Not Found\r\n"},
		"asks, then idles":   {"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 200 OK\r\n"},
		"asks and reads not": {strings.Repeat("GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n", 5), "HTTP/1.1 200 OK\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, core, readableByAll, shortTimeouts)
			c, err := net.Dial("unix", s.socket)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			testkit.Until(t, "connected", func() bool { return s.connections() == 1 })
			_, _ = io.WriteString(c, tt.send)
			testkit.Until(t, "dropped", func() bool { return s.connections() == 0 })
			got, _ := io.ReadAll(c)
			if !strings.HasPrefix(string(got), tt.want) || tt.want == "" && len(got) > 0 {
				t.Errorf("got %.200q", got)
			}
		})
	}
	t.Cleanup(func() { // the cleanup runs after all parallel cases have ended
		if got := core.receivedCommands(); got != "" {
			t.Errorf("half a request had an effect: %s", got)
		}
	})
}

func TestAThousandConnectionsDoNotExhaust(t *testing.T) {
	s := serve(t, newGoldenBackend(), readableByAll, noHeaderTimeout)
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	refused := 0
	for range 1000 {
		c, err := net.Dial("unix", s.socket)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	for _, c := range conns[maxConns:] {
		_ = c.SetReadDeadline(time.Now().Add(testkit.Patience))
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("after %d: %v", refused, err)
		}
		var e client.ErrorReply
		if json.NewDecoder(answer.Body).Decode(&e) != nil || answer.StatusCode != 503 || e.Error.Kind != client.KindBusy {
			t.Fatalf("%d %+v", answer.StatusCode, e)
		}
		refused++
	}
	if refused != 1000-maxConns {
		t.Errorf("%d were refused", refused)
	}
	s.awaitNoRefused(t)
	if code, body := s.curlAs(t, -1, "/v1/health"); code != 503 || !strings.Contains(body, `"kind":"busy"`) {
		t.Errorf("curl, while it is full: %d %s", code, body)
	}
	// The liveness probe must still pass, because a failure would restart the pod.
	if h, err := s.client().Probe(t.Context(), client.ProbeLive); err != nil || !h.OK {
		t.Errorf("live: %+v, %v", h, err)
	}
	// The client tries again until the server has dropped the silent connections.
	leave := time.AfterFunc(time.Second, func() {
		for _, c := range conns[:maxConns] {
			_ = c.Close()
		}
	})
	defer leave.Stop()
	if h, err := s.client().Health(t.Context()); err != nil || !h.OK {
		t.Errorf("%+v, %v", h, err)
	}
}

// An agent has opened all connections of its user, and the pod's readiness probe runs as the same user. The probe must get an
// answer: hinit recognizes it because it does not descend from a process of the pod.
func TestAnAgentWithAllConnectionsCannotMakeItsPodUnready(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		testkit.SkipOrFail(t, "needs curl")
	}
	s := serve(t, newGoldenBackend(), readableByAll, noHeaderTimeout)
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	for range 2 * maxConns {
		c, err := net.Dial("unix", s.socket)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	s.awaitNoRefused(t)
	ask := func(probe string) string {
		return curl + " -sS --unix-socket " + s.socket + " http://hinit/v1/health?probe=" + probe
	}
	testkit.Until(t, "a process of a service finds hinit busy", func() bool {
		inside, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", ask("ready")).Output()
		return err == nil && strings.Contains(string(inside), `"kind":"busy"`)
	})
	for _, probe := range []string{client.ProbeStartup, client.ProbeReady, client.ProbeLive} {
		// The grandchild waits for the end of its parent. It then no longer descends from the process of the test.
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "exec 3<&0; { read line <&3; "+ask(probe)+"; } &")
		wait, end, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = wait, write, write
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		for _, f := range []*os.File{wait, write, end} {
			_ = f.Close()
		}
		answer, _ := io.ReadAll(read)
		_ = read.Close()
		if !strings.Contains(string(answer), `"ok":true`) {
			t.Errorf("%s: %s", probe, answer)
		}
	}
}

// awaitNoRefused waits until no refused connection is left.
func (s *testServer) awaitNoRefused(t *testing.T) {
	t.Helper()
	testkit.Until(t, "all have left", func() bool { return s.connCounts.halfOpen.Load() == 0 })
}

func TestAStrangerCannotLockRootOut(t *testing.T) {
	testkit.NeedRoot(t)
	s := serve(t, newGoldenBackend(), readableByAll, noHeaderTimeout)
	for _, uid := range []uint32{10000, 65534} {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
		cmd.Env = append(os.Environ(), "CONTROL_TEST_HOG="+s.socket)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = in.Close()
			_ = cmd.Wait()
		}()
		line, _ := bufio.NewReader(out).ReadString('\n')
		if line != fmt.Sprintf("holding %d\n", 2*maxConns) {
			t.Fatalf("uid %d: %s", uid, line)
		}
		n := &s.connCounts.open[s.policy.classOf(peer{uid: uid})]
		testkit.Until(t, "its share is used up", func() bool { return n.Load() == maxConns })
	}
	if code, body := s.curlAs(t, 0, "/v1/health"); code != 200 {
		t.Errorf("root: %d %s", code, body)
	}
	s.awaitNoRefused(t)
	if code, _ := s.curlAs(t, 65534, "/v1/health"); code != 503 {
		t.Errorf("one stranger more: %d", code)
	}
}

func TestManyCommandsAtOnce(t *testing.T) {
	core := newLoopBackend(t)
	core.settle = 20 * time.Millisecond
	s := serve(t, core, readableByAll)
	const n = maxConns + 10
	for i := range n {
		core.addService(t, strconv.Itoa(i), supervisor.WantDown)
	}
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() { _, errs[i] = s.client().Start(t.Context(), strconv.Itoa(i), client.WaitOptions{Wait: true}) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	for _, v := range core.Snapshot().Services {
		if v.State != supervisor.Up {
			t.Errorf("%s is %s", v.Name, v.State)
		}
	}
}

func TestCloseAnswersWaitingClients(t *testing.T) {
	core := newLoopBackend(t)
	s := serve(t, core, readableByAll, noHeaderTimeout)
	core.addService(t, "x", supervisor.WantUp)
	core.procs.update(func() { core.procs.diesOnSignal = false })
	silent, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	result := make(chan error, 2)
	go func() {
		_, err := s.client().Stop(t.Context(), "x", client.WaitOptions{Wait: true, Timeout: time.Hour})
		result <- err
	}()
	go func() {
		result <- s.client().Events(t.Context(), client.EventOptions{Follow: true}, func(client.Event) error { return nil })
	}()
	testkit.Until(t, "all ask", func() bool {
		// The server has read the request for events, so the stop must wait for its answer.
		waits := s.connCounts.waiting[s.policy.classOf(peer{uid: uint32(os.Geteuid())})].Load()
		return s.connections() == 3 && waits > 0 && core.Snapshot().Find("gateway-x").State == supervisor.Stopping
	})
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	begun := time.Now()
	if err := s.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took > testkit.Patience/2 { // without the stop, the request would last an hour
		t.Errorf("a silent client held Close up for %v", took)
	}
	for range 2 {
		err := <-result
		var e *client.Error
		if err != nil && (!errors.As(err, &e) || e.Kind != client.KindStopping || e.Message != "hinit is ending") {
			t.Errorf("got %v", err)
		}
	}
	if _, err := os.Lstat(s.socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	if _, err := s.client().Health(t.Context()); !errors.Is(err, client.ErrUnreachable) {
		t.Errorf("after the end: %v", err)
	}
}

func TestCloseCutsOffWhoDoesNotRead(t *testing.T) {
	many := make([]*supervisor.Service, 2000)
	for i := range many {
		many[i] = newGateway(strconv.Itoa(i), supervisor.Up)
	}
	s := serve(t, newFakeBackend(many...), readableByAll)
	c, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Error(err)
	}
	if s.connections() != 0 {
		t.Error("it is still connected")
	}
}

func TestCloseDoesNotWaitForeverForTheCore(t *testing.T) {
	core := newGoldenBackend()
	entered, leave := make(chan struct{}), make(chan struct{})
	core.afterCommand = func(string, string) error {
		close(entered)
		<-leave
		return nil
	}
	s := serve(t, core, readableByAll)
	result := make(chan error, 1)
	go func() {
		_, err := s.client().Stop(t.Context(), "coder", client.WaitOptions{})
		result <- err
	}()
	<-entered
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close: %v", err)
	}
	if err := <-result; !errors.Is(err, client.ErrUnreachable) {
		t.Errorf("the client: %v", err)
	}
	close(leave)
}

func FuzzDecodeBody(f *testing.F) {
	for _, body := range []string{"", "{}", `{"wait":false}`, `{"timeout_ms":1}`, `{"timeout_ms":-1}`, "[]", "null", "{}{}", "\x00"} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		err := decodeBody(body, &client.CommandRequest{})
		var e *client.Error
		if err != nil && (!errors.As(err, &e) || e.Kind != client.KindBadRequest) {
			t.Errorf("%q: %v", body, err)
		}
	})
}

func TestQuotingKeepsATerminalSafe(t *testing.T) {
	long := strings.Repeat("ä", tailWidth)
	for _, line := range []string{"\x1b]0;title\a", "a\u202eb", "\xff\xfe", long, "\u0085"} {
		q := quote(line)
		for _, r := range q {
			if !strconv.IsPrint(r) {
				t.Errorf("%q: %q in it", q, r)
			}
		}
	}
	if q := quote(long); len(q) > tailWidth+10 || !strings.HasSuffix(q, `…"`) {
		t.Errorf("%s", q)
	}
}

func TestEveryStateHasItsNameOnTheWire(t *testing.T) {
	wire := []string{
		client.StateDown, client.StateWaiting, client.StateStarting, client.StateUp, client.StateStopping,
		client.StateKilling, client.StateFinishing, client.StateBackoff, client.StateParked, client.StateFailed,
	}
	states := []supervisor.State{
		supervisor.Down, supervisor.Waiting, supervisor.Starting, supervisor.Up, supervisor.Stopping,
		supervisor.Killing, supervisor.Finishing, supervisor.Backoff, supervisor.Parked, supervisor.Failed,
	}
	if got := fmt.Sprint(states); got != fmt.Sprint(wire) {
		t.Errorf("%v on the wire, %s in the supervisor", wire, got)
	}
	if client.WantUp != string(supervisor.WantUp) || client.WantDown != string(supervisor.WantDown) ||
		client.KindGateway != string(supervisor.KindGateway) || client.KindService != string(supervisor.KindService) ||
		client.KindCmd != string(supervisor.KindCmd) {
		t.Error("wants or kinds differ")
	}
}
