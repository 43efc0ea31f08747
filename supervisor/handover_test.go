package supervisor

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/proc"
	"hinit/internal/reexec"
)

// loopAfterHandover returns the loop that takes over from a machine. The state is encoded and decoded, as in a re-execution.
func loopAfterHandover(t *testing.T, m Machine, main func(run uint64) int) *Loop {
	t.Helper()
	old := NewLoop(Config{ShutdownBudget: m.ShutdownBudget})
	old.machine = m
	return newLoopAfterHandover(t, old, main)
}

// encodeHandover encodes the state that a loop hands over.
func encodeHandover(t *testing.T, l *Loop) json.RawMessage {
	t.Helper()
	data, err := reexec.NewCodec().Encode(l.HandOver())
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func decodeHandover(t *testing.T, data json.RawMessage) *Handover {
	t.Helper()
	h := &Handover{}
	if err := reexec.NewCodec().Decode(data, h); err != nil {
		t.Fatal(err)
	}
	return h
}

func newLoopAfterHandover(t *testing.T, old *Loop, main func(run uint64) int) *Loop {
	t.Helper()
	next := NewLoop(old.cfg)
	next.TakeOver(decodeHandover(t, encodeHandover(t, old)), main)
	return next
}

// FuzzHandover hands the state to a new machine after each event. The new machine must equal the old one.
func FuzzHandover(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
	f.Add([]byte{0, 40, 80, 120, 160, 200, 240, 3, 13, 13, 13, 13})
	f.Add([]byte{1, 4, 10, 10, 1, 4, 12, 10, 10, 11})
	f.Add([]byte{0, 4, 10, 4, 10, 53, 10, 16, 20, 26, 2, 18, 255, 10, 11, 255})
	f.Fuzz(func(t *testing.T, script []byte) {
		w := newWorld(t)
		for _, b := range script {
			w.doAction(int(b))
			w.checkInvariants()
			if w.finished {
				return
			}
			next := loopAfterHandover(t, w.m, func(run uint64) int {
				for _, s := range w.m.inOrder {
					if s.liveRun() == run {
						return s.pid
					}
				}
				return 0
			})
			next.firstEvents = slices.DeleteFunc(next.firstEvents, func(e Event) bool { _, lines := e.(LastLines); return lines })
			if len(next.firstEvents) > 0 {
				t.Fatalf("the successor has something to say although nothing was missed: %+v", next.firstEvents)
			}
			if was, is := dumpMachine(t, &w.m), dumpMachine(t, &next.machine); was != is {
				t.Fatalf("the successor differs:\n%s\n%s", was, is)
			}
			w.m = next.machine
		}
		w.shutdown()
	})
}

// dumpMachine returns the whole state of a machine as text.
func dumpMachine(t *testing.T, m *Machine) string {
	t.Helper()
	old := NewLoop(Config{})
	old.machine = *m
	return string(encodeHandover(t, old))
}

// FuzzUndo undoes each possible step in each reachable state. The machine must then equal its state before the step.
func FuzzUndo(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
	f.Add([]byte{0, 16, 32, 4, 20, 10, 4, 10, 53, 10, 36, 2, 18, 7, 255, 10, 11, 255})
	f.Fuzz(func(t *testing.T, script []byte) {
		w := newWorld(t)
		for _, b := range script[:min(len(script), 30)] {
			w.doAction(int(b))
			if w.finished {
				return
			}
			for _, e := range allEvents(&w.m) {
				before := dumpMachine(t, &w.m)
				var u stepUndo
				u.beginStep(&w.m)
				w.m.Step(time.Now(), e)
				u.undoStep(&w.m)
				if after := dumpMachine(t, &w.m); after != before {
					t.Fatalf("%T was not undone:\n%s\n%s", e, before, after)
				}
			}
		}
	})
}

// TestAPanicInAnyStepLeavesNoTrace makes steps panic in the middle. After an undo, the machine and its indexes must be as
// before the step.
func TestAPanicInAnyStepLeavesNoTrace(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 4 {
		w := newWorld(t)
		for range 12 {
			if w.doAction(random.IntN(256)); w.finished {
				break
			}
			for _, e := range allEvents(&w.m) {
				before := dumpMachine(t, &w.m)
				var u stepUndo
				u.beginStep(&w.m)
				w.m.Random = func() float64 { panic("in the middle") }
				func() {
					defer func() { _ = recover() }()
					w.m.Step(w.now, e)
				}()
				u.undoStep(&w.m)
				if after := dumpMachine(t, &w.m); after != before {
					t.Fatalf("%T was not undone:\n%s\n%s", e, before, after)
				}
				w.m.Random = nil
				w.checkInvariants()
			}
		}
	}
}

func allEvents(m *Machine) []Event {
	events := []Event{
		NeedMet{"boot"},
		Shutdown{Reason: "test"},
		NoChildrenLeft{},
		Tick{},
		Remark{Text: "x"},
		Add{Name: "new", Policy: new(testPolicy), Want: WantUp},
		Add{Name: "a", Policy: &Policy{}, Want: WantUp},
		Add{Name: "new", Policy: &Policy{RestartAndNeeds: RestartAndNeeds{Needs: []Need{{"a", UntilReady, false}}}}, Want: WantUp},
	}
	for _, s := range m.inOrder {
		n := s.name
		events = append(events, Remove{n}, Start{n}, Stop{n}, Restart{n}, Exited{Name: n, PID: s.pid, Code: 1},
			Exited{Name: n, PID: s.pid, Leftover: true}, RunEnded{n, s.number}, StopCommandEnded{n, s.stopCommand.run, "x", false}, StopCommandEnded{n, s.stopCommand.run, "", true}, RunEnded{n, s.stopCommand.run}, DescendantsEnded{n, s.number, 3}, CorrectCause{n, s.number, CauseReplaced},
			LastLines{n, s.number, []string{"x"}}, Ready{n, s.number, !s.ready, ""}, InputsChanged{n}, Scheduled{n, time.Unix(1, 0), true}, NotifyMessage{n, s.number, true, true, "x", true, time.Minute}, ForwardSignal{n, 1}, Spawned{n, 7},
			SpawnFailed{Name: n}, Evict{Names: []string{n, m.inOrder[0].name, "none"}, Reason: "x"}, Hold{Name: n, Reason: "x"}, Hold{Name: n, Reason: "x", Disk: true}, Hold{Name: n}, Remark{Service: n, Text: "x"})
	}
	return events
}

// The test fails for each new field. Decide whether undo copies the field, or whether every step replaces its value.
func TestNothingIsChangedInPlace(t *testing.T) {
	known := map[string]string{
		"needs": "only replaced", "recentFastExits": "only replaced",
		"lastExit":         "never changed, only replaced",
		"exits":            "never changed, only replaced",
		"restartCauses":    "never changed, only replaced",
		"policy":           "only replaced",
		"policy.ParkCodes": "never changed", "policy.NoDelayCodes": "never changed", "policy.SuccessCodes": "never changed", "policy.StopCommand": "never changed",
		"policy.PermanentFinishCodes": "never changed", "policy.RestartAndNeeds.Needs": "never changed", "policy.RestartAndNeeds.RestartOn": "never changed",
		"taskNeeds": "only appended to, and replaced", "respawns": "only replaced", "unmetNeeds": "never changed, only replaced",
		"cmdExitCode":       "never changed, only replaced",
		"startQueue.inTurn": "only replaced", "startQueue.queue": "only appended to, and replaced",
		"services": "made anew from inOrder", "dependants": "made anew from inOrder", "stepResult.changed": "not state", "stepResult.saved": "not state", "inOrder": "only appended to, and replaced", "stepResult.actions": "not state", "shortage.held": "only replaced", "Random": "not state",
	}
	var walk func(path string, typ reflect.Type)
	walk = func(path string, typ reflect.Type) {
		for field := range typ.Fields() {
			name := strings.TrimPrefix(path+"."+field.Name, ".")
			switch field.Type.Kind() {
			case reflect.Struct:
				if field.Type != reflect.TypeFor[time.Time]() {
					walk(name, field.Type)
				}
			case reflect.Slice, reflect.Map, reflect.Pointer, reflect.Chan, reflect.Func, reflect.Interface:
				if known[name] == "" {
					t.Errorf("%s.%s: is it changed in place? Replace it instead, and add it here", typ, field.Name)
				}
			default:
			}
		}
	}
	walk("", reflect.TypeFor[service]())
	walk("policy", reflect.TypeFor[Policy]())
	walk("", reflect.TypeFor[Machine]())
}

// Every field of the machine's state must be handed over, also fields that are added later.
func TestEveryFieldIsHandedOver(t *testing.T) {
	var s service
	fillFields(reflect.ValueOf(&s).Elem())
	s.name = "svc"
	m := Machine{inOrder: []*service{&s}}
	next := loopAfterHandover(t, m, func(uint64) int { return s.pid })
	got := *next.machine.services["svc"]
	if !reflect.DeepEqual(got, s) {
		t.Errorf("got  %+v\nwant %+v", got, s)
	}
}

// fillFields sets every field of v to a value that is not zero.
func fillFields(v reflect.Value) {
	v = reflect.NewAt(v.Type(), v.Addr().UnsafePointer()).Elem()
	switch v.Kind() {
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(123, 456)))
			return
		}
		for _, field := range v.Fields() {
			fillFields(field)
		}
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString("text")
	case reflect.Int, reflect.Int64, reflect.Int32:
		v.SetInt(17)
	case reflect.Uint, reflect.Uint64, reflect.Uint32:
		v.SetUint(18)
	case reflect.Float64:
		v.SetFloat(0.25)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fillFields(v.Index(0))
		fillFields(v.Index(1))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillFields(v.Elem())
	default:
		panic("no value for " + v.Type().String())
	}
}

func duplicateFile(f *os.File) (twin *os.File) {
	if raw, err := f.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			if two, err := unix.Dup(int(fd)); err == nil {
				twin = os.NewFile(uintptr(two), f.Name())
			}
		})
	}
	return twin
}

// A service must count as ready if the old loop read the readiness newline but ended before it processed the newline.
func TestAServiceThatIsReadyDuringAReexecutionStaysNotReady(t *testing.T) {
	n, err := newReadinessPipe(3)
	if err != nil {
		t.Fatal(err)
	}
	own := testPolicy
	own.ReportsReadiness = true
	m := Machine{}
	m.Step(time.Now(), Add{Name: "s", Policy: &own, Want: WantUp})
	m.Step(time.Now(), Spawned{"s", 7})
	run := m.services["s"].number
	main := func(uint64) int { return 7 }
	generation := func(h *Handover) *Loop {
		l := NewLoop(Config{ShutdownBudget: 10 * time.Millisecond, Procs: newFakeProcs(), OnSignal: func(os.Signal) Event { return nil }})
		l.TakeOver(h, main)
		go l.Run()
		t.Cleanup(func() { l.Post(Shutdown{}); l.Post(Shutdown{}); <-l.Ended() })
		return l
	}
	old := generation(&Handover{Machine: m, Services: m.inOrder, Units: []*unit{{Unit: &Unit{Name: "s", Policy: own, NotifyFD: 3}}}, Runs: map[uint64]string{run: "s"}, Notify: map[uint64]*os.File{run: n.r}})
	state, replaced := make(chan *Handover), make(chan struct{})
	defer close(replaced)
	go func() {
		_ = old.RunInLoop(t.Context(), func() {
			if _, err := n.w.WriteString("\n"); err != nil {
				t.Error(err)
			}
			for len(old.requests) == 0 {
				runtime.Gosched()
			}
			h := old.HandOver()
			pipe := duplicateFile(h.Notify[run])
			h.Notify = nil
			data, err := reexec.NewCodec().Encode(h)
			if err != nil {
				t.Error(err)
			}
			h = decodeHandover(t, data)
			h.Notify = map[uint64]*os.File{run: pipe}
			state <- h
			<-replaced
		})
	}()
	next := generation(<-state)
	awaitSnapshot(t, next, "ready", func(s *Snapshot) bool { return s.Find("s").Ready })
}

func TestSuccessorFindsOutWhatWasMissed(t *testing.T) {
	now := time.Now()
	m := Machine{}
	for _, name := range []string{"spawned", "not-spawned", "lost", "well"} {
		m.Step(now, Add{Name: name, Policy: new(testPolicy), Want: WantUp})
		if name == "lost" || name == "well" {
			m.Step(now, Spawned{name, 100 + len(m.inOrder)})
		}
	}
	run := func(name string) uint64 { return m.services[name].number }
	next := loopAfterHandover(t, m, func(r uint64) int {
		switch r {
		case run("spawned"):
			return 77
		case run("well"):
			return m.services["well"].pid
		}
		return 0
	})
	want := []Event{
		Spawned{"spawned", 77},
		SpawnFailed{Name: "not-spawned", Error: "hinit had a fault while it was starting it", Code: 126},
		Remark{Service: "lost", Text: "how it ended is not known: hinit had a fault at that moment"},
		Exited{Name: "lost", PID: 103, Code: -1, Leftover: true},
	}
	if !reflect.DeepEqual(next.firstEvents, want) {
		t.Errorf("got %+v", next.firstEvents)
	}
	if !slices.Equal(next.lingeringRuns, []uint64{run("lost")}) {
		t.Errorf("lingers: %v", next.lingeringRuns)
	}
}

// If a service ends just before a re-execution, the next program must not wait for its last lines. Otherwise its status says
// during the whole next run that last lines are still to come, and the log never reports a crash loop.
func TestAnExitWhoseLinesWereNotReadIsNotPendingForEver(t *testing.T) {
	now, m := time.Now(), Machine{}
	m.Step(now, Add{Name: "s", Policy: new(testPolicy), Want: WantUp})
	m.Step(now, Spawned{"s", 100})
	m.Step(now, Exited{Name: "s", PID: 100, Code: 1})
	next := loopAfterHandover(t, m, func(uint64) int { return 0 })
	for _, e := range next.firstEvents {
		next.step(e)
	}
	if x := next.machine.services["s"].lastExit; x.Tail == nil {
		t.Errorf("its last lines are still to come: %+v", x)
	}
}

// panicProcs panics when it has to start the service "cursed".
type panicProcs struct {
	*fakeProcs
	armed bool
}

func (p *panicProcs) Spawn(spec proc.Spec) (int, error) {
	if p.armed && spec.Name == "cursed" {
		panic("cursed")
	}
	return p.fakeProcs.Spawn(spec)
}

func TestPanicOfTheLoopIsHandedToTheSuccessor(t *testing.T) {
	procs := &panicProcs{newFakeProcs(), true}
	var told any
	cfg := Config{
		Procs: procs, Logs: procs, ShutdownBudget: time.Second, SIGCHLD: procs.sigchld, Signals: make(chan os.Signal),
		OnSignal: func(os.Signal) Event { return nil },
	}
	var data json.RawMessage
	var old *Loop
	cfg.OnPanic = func(value any, stack []byte) int {
		told = value
		if !strings.Contains(string(stack), "panicProcs") {
			t.Errorf("the stack does not show where:\n%s", stack)
		}
		data = encodeHandover(t, old)
		return 70
	}
	old = NewLoop(cfg)
	code := make(chan int, 1)
	go func() { code <- old.Run() }()
	ctx := t.Context()
	if err := old.Register(ctx, Unit{Name: "good", Policy: testPolicy, LogFile: "/log"}, WantUp); err != nil {
		t.Fatal(err)
	}
	_ = old.Register(ctx, Unit{Name: "cursed", Policy: testPolicy}, WantUp)
	if got := <-code; got != 70 || told != "cursed" {
		t.Fatalf("code %d, told %v", got, told)
	}

	procs.armed = false
	next := NewLoop(cfg)
	next.TakeOver(decodeHandover(t, data), func(run uint64) int { return procs.live[run] })
	if s := next.Snapshot().Find("good"); s == nil || s.State != Up || s.PID != old.Snapshot().Find("good").PID || s.Log != "/log" {
		t.Errorf("good: %+v", s)
	}
	last := old.History().Last()
	if records, lost := next.History().Since(last - 1); lost != 0 || len(records) != 1 || records[0].Seq != last {
		t.Errorf("the history continues with %+v", records)
	}
	go func() { code <- next.Run() }()
	if err := next.Do(ctx, Tick{}); err != nil {
		t.Fatal(err)
	}
	if s := next.Snapshot().Find("cursed"); s.State != Backoff || !strings.Contains(s.Reason, "fault") {
		t.Errorf("cursed is %s: %s", s.State, s.Reason)
	}
	if err := next.Do(ctx, Start{"cursed"}); err != nil {
		t.Fatal(err)
	}
	if s := next.Snapshot().Find("cursed"); s.State != Up || s.Run != 3 {
		t.Errorf("cursed is %s in run %d", s.State, s.Run)
	}
	ran := false
	if err := next.RunInLoop(ctx, func() { ran = true }); err != nil || !ran {
		t.Errorf("the loop did not yield: %v", err)
	}
	procs.setDiesOnSignal()
	if err := next.Do(ctx, Shutdown{Code: 3}); err != nil {
		t.Error(err)
	}
	<-code
}
