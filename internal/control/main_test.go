package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/proc"
	"hinit/internal/testkit"
	"hinit/supervisor"
)

func TestMain(m *testing.M) {
	if socket := os.Getenv("CONTROL_TEST_HOG"); socket != "" {
		holdConnections(socket)
		os.Exit(0)
	}
	if socket := os.Getenv("CONTROL_TEST_LEND"); socket != "" {
		passConnToParent(socket)
		os.Exit(0)
	}
	testkit.IsolateProcess()
	testkit.LimitParallel(12)
	blocking.MinimizeTurns() // with the fewest turns, a call hangs if it holds a turn while it waits for another
	goleak.VerifyTestMain(m)
}

// holdConnections opens more connections than a user may have, prints that, and keeps them open until its input ends.
func holdConnections(socket string) {
	var conns []net.Conn
	for range 2 * maxConns {
		c, err := net.Dial("unix", socket)
		if err != nil {
			fmt.Println(err)
			return
		}
		conns = append(conns, c)
	}
	fmt.Println("holding", len(conns))
	_, _ = io.Copy(io.Discard, os.Stdin)
	runtime.KeepAlive(conns)
}

// fakeBackendParts is the part of PID 1 that a test replaces. newBackend converts it to a Backend.
type fakeBackendParts interface {
	Loop
	StartRun(ctx context.Context, r client.RunRequest, byRoot bool, service string) (client.Run, error)
	StopRun(ctx context.Context, id string) (client.Run, error)
	FindRun(id string) (client.Run, error)
	RunsSince(cursor uint64) ([]client.Run, uint64)
	RunChanged() <-chan struct{}
	Command(ctx context.Context, verb client.Verb, service string) error
	Rescan(ctx context.Context) error
	Find(ctx context.Context, name string) error
	Reload(ctx context.Context, how client.Reload) (client.ReloadReply, error)
	Examine(ctx context.Context) client.Findings
	Reexec(ctx context.Context, binary string) (image int, err error)
	Config() []client.ConfigEntry
	Init() client.Init
	SettleTime() time.Duration
	AwaitBoot(ctx context.Context, pid int) error
	BootProgress() (bool, *client.BootHook)
	ExpectedServices(ctx context.Context, all bool) []*supervisor.Service
	Note(v *supervisor.Service) string
	Output(service string) *client.Output
	Checks
	NonDefaultSettings(service string) []client.ConfigEntry
	Isolation(v *supervisor.Service) *client.Isolation
	Limits(v *supervisor.Service) []client.Limit
	ServedBy(v *supervisor.Service) string
	SetOwnGatewayAllowed(service string)
	Topology(ctx context.Context, mode string, dry bool) (client.TopologyReply, error)
	S6() Slots
}

// runsAdapter adapts a core to the Runs of a Backend.
type runsAdapter struct{ c fakeBackendParts }

func (r runsAdapter) Stop(ctx context.Context, id string) (client.Run, error) {
	return r.c.StopRun(ctx, id)
}

func (r runsAdapter) Find(id string) (client.Run, error) { return r.c.FindRun(id) }

func (r runsAdapter) RunsSince(cursor uint64) ([]client.Run, uint64) { return r.c.RunsSince(cursor) }

func (r runsAdapter) Changed() <-chan struct{} { return r.c.RunChanged() }

// newBackend makes a Backend of a core.
func newBackend(c fakeBackendParts) Backend {
	return Backend{
		Loop: c, StartRun: c.StartRun, Runs: runsAdapter{c},
		Command: c.Command, Rescan: c.Rescan, FindProfile: c.Find, Reload: c.Reload, Examine: c.Examine, Reexec: c.Reexec,
		Config: c.Config, Init: c.Init, SettleTime: c.SettleTime,
		Boot:         Boot{AwaitBoot: c.AwaitBoot, BootProgress: c.BootProgress, ExpectedServices: c.ExpectedServices},
		ServiceFacts: ServiceFacts{Note: c.Note, Output: c.Output, Checks: c, ServiceConfig: c},
		Gateways:     Gateways{ServedBy: c.ServedBy, SetOwnGatewayAllowed: c.SetOwnGatewayAllowed, Topology: c.Topology},
		S6Slots:      c.S6,
	}
}

// testSettleTime is the time after which a running run counts as started.
const testSettleTime = time.Second

// emptyBackendParts implements the parts of a Backend that most tests don't need, with empty answers.
type emptyBackendParts struct{}

func (emptyBackendParts) Checks(*supervisor.Service) []client.Check       { return nil }
func (emptyBackendParts) PauseChecksUntil(string, time.Time) error        { return nil }
func (emptyBackendParts) Output(string) *client.Output                    { return nil }
func (emptyBackendParts) Note(*supervisor.Service) string                 { return "" }
func (emptyBackendParts) Limits(*supervisor.Service) []client.Limit       { return nil }
func (emptyBackendParts) NonDefaultSettings(string) []client.ConfigEntry  { return nil }
func (emptyBackendParts) Isolation(*supervisor.Service) *client.Isolation { return nil }
func (emptyBackendParts) SettleTime() time.Duration                       { return testSettleTime }
func (emptyBackendParts) ServedBy(*supervisor.Service) string             { return "" }
func (emptyBackendParts) SetOwnGatewayAllowed(string)                     {}
func (emptyBackendParts) Reexec(context.Context, string) (int, error) {
	return 0, errors.New("not here")
}
func (emptyBackendParts) AwaitBoot(context.Context, int) error   { return nil }
func (emptyBackendParts) BootProgress() (bool, *client.BootHook) { return false, nil }

func (emptyBackendParts) ExpectedServices(context.Context, bool) []*supervisor.Service { return nil }

func (emptyBackendParts) Examine(context.Context) client.Findings { return nil }

func (emptyBackendParts) S6() Slots { return nil }

func (emptyBackendParts) Topology(context.Context, string, bool) (client.TopologyReply, error) {
	return client.TopologyReply{}, nil
}

// fakeBackend is a Backend whose state a test sets.
type fakeBackend struct {
	emptyBackendParts

	mu       sync.Mutex
	snap     *supervisor.Snapshot
	changed  chan struct{}
	ring     supervisor.Ring
	commands []string
	testHooks
	initStatus client.Init
	booting    bool
	hook       *client.BootHook
	expected   []*supervisor.Service
	config     []client.ConfigEntry

	fakeRuns
	slots             map[string]client.Slot
	countsSlotQueries bool // whether a query of a slot counts as a command
}

// testHooks are functions that a test sets and a fakeBackend calls.
type testHooks struct {
	afterCommand func(verb, service string) error // the core calls effect after each command
	rescan       func(*fakeBackend) error
	find         func(*fakeBackend, string) error
	reload       func() ([]string, error)
	onReap       func(context.Context) error
	awaitBoot    func(ctx context.Context, pid int) error
}

func (f *fakeBackend) currentHooks() testHooks {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.testHooks
}

func newFakeBackend(services ...*supervisor.Service) *fakeBackend {
	return &fakeBackend{
		snap: &supervisor.Snapshot{Services: services}, changed: make(chan struct{}), fakeRuns: fakeRuns{changed: make(chan struct{})},
		testHooks: testHooks{
			afterCommand: func(string, string) error { return nil },
			rescan:       func(*fakeBackend) error { return nil },
			find:         func(*fakeBackend, string) error { return nil },
			reload:       func() ([]string, error) { return nil, nil },
			onReap:       func(context.Context) error { return nil },
			awaitBoot:    func(context.Context, int) error { return nil },
		},
	}
}

func (f *fakeBackend) setServices(services ...*supervisor.Service) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.snap = &supervisor.Snapshot{Services: services}
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeBackend) Snapshot() *supervisor.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.snap
}

func (f *fakeBackend) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

func (f *fakeBackend) Command(_ context.Context, verb client.Verb, service string) error {
	f.mu.Lock()
	f.commands = append(f.commands, string(verb)+" "+service)
	f.mu.Unlock()
	return f.currentHooks().afterCommand(string(verb), service)
}

func (f *fakeBackend) BootProgress() (bool, *client.BootHook) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.booting, f.hook
}

func (f *fakeBackend) ExpectedServices(ctx context.Context, all bool) []*supervisor.Service {
	if all {
		<-ctx.Done()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.expected
}

func (f *fakeBackend) AwaitBoot(ctx context.Context, pid int) error {
	return f.currentHooks().awaitBoot(ctx, pid)
}

func (f *fakeBackend) update(c func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c()
}

func (f *fakeBackend) receivedCommands() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.commands, ", ")
}

func (f *fakeBackend) History() *supervisor.Ring { return &f.ring }
func (f *fakeBackend) Orphans() uint64           { return 7 }
func (f *fakeBackend) ReapNow(ctx context.Context, _ ...int) error {
	return f.Do(ctx, supervisor.Tick{})
}

func (f *fakeBackend) Rescan(context.Context) error { return f.currentHooks().rescan(f) }

func (f *fakeBackend) Find(_ context.Context, name string) error {
	return f.currentHooks().find(f, name)
}

func (f *fakeBackend) Reload(context.Context, client.Reload) (client.ReloadReply, error) {
	out, err := f.currentHooks().reload()
	return client.ReloadReply{Changes: out}, err
}
func (f *fakeBackend) Config() []client.ConfigEntry { return f.config }
func (f *fakeBackend) Init() client.Init            { return f.initStatus }

func (f *fakeBackend) Do(ctx context.Context, e supervisor.Event) error {
	switch e := e.(type) {
	case supervisor.Tick:
		return f.currentHooks().onReap(ctx)
	case supervisor.StatusText:
		return f.setStatusText(ctx, e)
	}
	return nil
}

func newGateway(profile string, state supervisor.State, change ...func(*supervisor.Service)) *supervisor.Service {
	v := &supervisor.Service{
		Name: "gateway-" + profile, Profile: profile, Kind: supervisor.KindGateway, State: state, Want: supervisor.WantUp,
		Since: time.Now().Add(-time.Minute), Run: 1,
	}
	for _, c := range change {
		c(v)
	}
	return v
}

func setUnwanted(v *supervisor.Service) { v.Want = supervisor.WantDown }

// loopBackend is a Backend with a real supervisor over fake processes.
type loopBackend struct {
	emptyBackendParts
	fakeRuns
	*supervisor.Loop
	procs  *fakeProcs
	settle time.Duration
}

func (c *loopBackend) SettleTime() time.Duration { return c.settle }

func (c *loopBackend) Command(ctx context.Context, verb client.Verb, service string) error {
	switch verb {
	case client.VerbStart:
		return c.Do(ctx, supervisor.Start{Name: service})
	case client.VerbStop:
		return c.Do(ctx, supervisor.Stop{Name: service})
	case client.VerbRestart:
		return c.Do(ctx, supervisor.Restart{Name: service})
	}
	return fmt.Errorf("no verb %q", verb)
}

func (c *loopBackend) Rescan(context.Context) error       { return nil }
func (c *loopBackend) Find(context.Context, string) error { return nil }
func (c *loopBackend) Reload(context.Context, client.Reload) (client.ReloadReply, error) {
	return client.ReloadReply{}, nil
}
func (c *loopBackend) Config() []client.ConfigEntry { return nil }
func (c *loopBackend) Init() client.Init            { return client.Init{} }

func newLoopBackend(t *testing.T) *loopBackend {
	t.Helper()
	procs := &fakeProcs{pid: 4 << 20, pidByRun: map[uint64]int{}, diesOnSignal: true, sigchld: make(chan os.Signal, 1)}
	signals := make(chan os.Signal, 1)
	c := &loopBackend{procs: procs, settle: testSettleTime, Loop: supervisor.NewLoop(supervisor.Config{
		Procs: procs, Logs: procs, ShutdownBudget: 8 * time.Second, SIGCHLD: procs.sigchld, Signals: signals,
		OnSignal: func(os.Signal) supervisor.Event { return supervisor.Shutdown{Reason: "end of the test"} },
	})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.Run()
	}()
	t.Cleanup(func() {
		procs.update(func() { procs.diesOnSignal = true })
		signals <- syscall.SIGTERM
		signals <- syscall.SIGTERM // no grace period for processes that ignore SIGTERM because of a test
		<-ended
		procs.tails.Wait()
	})
	return c
}

func (c *loopBackend) addService(t *testing.T, name string, want supervisor.Want, change ...func(*supervisor.Unit)) {
	t.Helper()
	u := supervisor.Unit{
		Name: "gateway-" + name, Profile: name, Kind: supervisor.KindGateway,
		Policy: supervisor.Policy{
			ResetAfter: time.Minute, ParkCodes: []int{78}, NoDelayCodes: []int{75}, StopSignal: 15, Grace: time.Minute,
		},
	}
	u.Policy.Backoff.Initial, u.Policy.Backoff.Max, u.Policy.Backoff.Factor = time.Second, time.Minute, 2
	for _, f := range change {
		f(&u)
	}
	if err := c.Register(t.Context(), u, want); err != nil {
		t.Fatal(err)
	}
}

// fakeProcs is a fake kernel: its processes are only records.
type fakeProcs struct {
	mu           sync.Mutex
	pid          int
	pidByRun     map[uint64]int
	ended        []proc.Exit
	diesOnSignal bool // whether a stop signal ends the process
	spawnError   error
	onSpawn      func(run uint64)
	tail         []string
	tails        sync.WaitGroup
	sigchld      chan os.Signal
}

func (f *fakeProcs) update(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fakeProcs) Spawn(spec proc.Spec) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.spawnError != nil {
		return 0, f.spawnError
	}
	f.pid++
	pid := f.pid
	f.pidByRun[spec.ID] = pid
	if f.onSpawn != nil {
		f.onSpawn(spec.ID)
	}
	return pid, nil
}

func (f *fakeProcs) end(run uint64, code, signal int) {
	f.update(func() { f.endProcess(run, code, signal) })
}

func (f *fakeProcs) endProcess(run uint64, code, signal int) {
	f.ended = append(f.ended, proc.Exit{ID: run, PID: f.pidByRun[run], Code: code, Signal: signal})
	delete(f.pidByRun, run)
	select {
	case f.sigchld <- syscall.SIGCHLD:
	default:
	}
}

func (f *fakeProcs) Signal(run uint64, signal int) error {
	f.update(func() {
		if f.pidByRun[run] != 0 && f.diesOnSignal {
			f.endProcess(run, -1, signal)
		}
	})
	return nil
}

func (f *fakeProcs) SignalGroup(run uint64, signal int) error { return f.Signal(run, signal) }

func (f *fakeProcs) SignalTree(run uint64, signal int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pidByRun[run] == 0 {
		return 0
	}
	f.endProcess(run, -1, signal)
	return 1
}

func (f *fakeProcs) Reap(_ bool, each func(proc.Exit)) bool {
	f.mu.Lock()
	ended := f.ended
	f.ended = nil
	childless := len(f.pidByRun) == 0
	f.mu.Unlock()
	for _, x := range ended {
		each(x)
	}
	return childless
}

func (f *fakeProcs) SignalDescendants(int)                     {}
func (f *fakeProcs) CheckForTracer(...int)                     {}
func (f *fakeProcs) RecordMembers(uint64)                      {}
func (f *fakeProcs) RunOf(int) uint64                          { return 0 }
func (f *fakeProcs) EndedRuns(runs []uint64) []uint64          { return runs }
func (f *fakeProcs) Forget(uint64)                             {}
func (f *fakeProcs) Pipes(string) (out, e *os.File, err error) { return nil, nil, nil }

// Tail calls done in another goroutine after a moment, because reading a log takes time.
func (f *fakeProcs) Tail(_ string, done func([]string)) {
	f.tails.Go(func() {
		f.mu.Lock()
		at := time.After(10 * time.Millisecond)
		if f.onSpawn != nil {
			at = time.After(0) // an error means that the process has ended
		}
		f.mu.Unlock()
		<-at
		f.mu.Lock()
		tail := f.tail
		f.mu.Unlock()
		done(tail)
	})
}

// readableByAll is a policy under which other users may read the status.
var readableByAll = Options{AgentUID: 10000, OtherUsers: config.OthersMayReadStatus}

type testServer struct {
	*Server
	socket string
	ended  chan error
}

func newServer(core fakeBackendParts, o Options) *Server {
	return New(newBackend(core), withDefaults(o))
}

func withDefaults(o Options) Options {
	if o.Log == nil {
		o.Log = func(string) {}
	}
	if o.OnRequest == nil {
		o.OnRequest = func() {}
	}
	if o.IsDenied == nil {
		o.IsDenied = func(int, uint32, func() bool) bool { return false }
	}
	return o
}

// serve listens on a socket that every user can reach, until the end of the test.
func serve(t *testing.T, core fakeBackendParts, o Options, tune ...func(*Server)) *testServer {
	t.Helper()
	dir, err := os.MkdirTemp("", "control") //nolint:usetesting // other users can't reach a socket in t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s := &testServer{newServer(core, o), filepath.Join(dir, "control.sock"), make(chan error, 1)}
	s.bootListTimeout = 50 * time.Millisecond
	for _, f := range tune {
		f(s.Server)
	}
	l, err := Listen(s.socket)
	if err != nil {
		t.Fatal(err)
	}
	go func() { s.ended <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
		if err := <-s.ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return s
}

func (s *testServer) client() *dial.Client { return dial.New(s.socket) }

// curlAs makes a request as a user (-1 stands for the present one), and returns the status code and the body.
func (s *testServer) curlAs(t *testing.T, uid int, args ...string) (int, string) {
	t.Helper()
	path, err := exec.LookPath("curl")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs curl")
		}
		t.Skip("needs curl")
	}
	args = append([]string{"-sS", "--max-time", "40", "-w", "\n%{http_code}", "--unix-socket", s.socket}, args...)
	args[len(args)-1] = "http://hinit" + args[len(args)-1]
	cmd := exec.CommandContext(t.Context(), path, args...)
	if uid >= 0 {
		testkit.NeedRoot(t)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("curl %v: %v\n%s", args, err, out)
	}
	i := strings.LastIndexByte(string(out), '\n')
	code, err := strconv.Atoi(string(out[i+1:]))
	if err != nil {
		t.Fatalf("curl %v: %s", args, out)
	}
	return code, string(out[:i])
}
