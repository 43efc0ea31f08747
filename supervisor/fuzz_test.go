package supervisor

import (
	"fmt"
	"testing"
	"time"
)

// FuzzStep drives a machine with any sequence of events, answers its actions as a kernel would, and checks after each
// step what must always hold.
func FuzzStep(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
	f.Add([]byte{0, 40, 80, 120, 160, 200, 240, 3, 13, 13, 13, 13})
	f.Add([]byte{1, 4, 10, 10, 1, 4, 12, 10, 10, 11})
	f.Fuzz(func(t *testing.T, script []byte) {
		w := newWorld(t)
		for _, b := range script {
			w.act(int(b))
			w.check()
			if w.finished {
				return
			}
		}
		w.shutdown()
	})
}

// process is the kernel's side of a run.
type process struct {
	pid      int
	main     bool // main process alive
	leftover bool
	killAt   time.Time // earliest time at which KILL is allowed
	termed   bool
}

type world struct {
	t        *testing.T
	m        Machine
	now      time.Time
	pids     int
	procs    map[string]*process
	finished bool
	ending   bool
	hasty    bool
}

func newWorld(t *testing.T) *world {
	return &world{
		t: t, m: Machine{Budget: 8 * time.Second}, now: time.Unix(1000, 0), pids: 100,
		procs: map[string]*process{},
	}
}

func (w *world) act(b int) {
	name := string(rune('a' + b/16%3))
	p := w.procs[name]
	switch b % 16 {
	case 0:
		w.step(Add{Name: name, Policy: policy, Want: WantUp})
	case 1:
		w.step(Start{name})
	case 2:
		w.step(Stop{name})
	case 3:
		w.step(Restart{name})
	case 4, 5:
		if p != nil && p.main {
			p.main, p.leftover = false, b%16 == 5
			w.step(Exited{Name: name, PID: p.pid, Code: []int{0, 1, 75, 78}[b/48%4], Leftover: p.leftover})
		}
	case 6:
		if p != nil && !p.main && p.leftover {
			p.leftover = false
			w.step(Gone{name, w.m.services[name].run})
		}
	case 7:
		w.step(Remove{name})
	case 8:
		w.step(Add{Name: name, Policy: policy, Want: WantDown, Needs: []string{"boot"}})
	case 9:
		w.step(Met{"boot"})
	case 10:
		if at, ok := w.m.Deadline(); ok && at.After(w.now) {
			w.now = at
		}
		w.step(Tick{})
	case 11:
		w.now = w.now.Add(700 * time.Millisecond)
		w.step(Tick{})
	case 12:
		w.step(Inputs{name})
	case 13:
		if s := w.m.services[name]; s != nil {
			w.step(Explained{name, s.run, CauseReplaced})
		}
	case 14:
		w.step(Gone{name, 1 << 40}) // no such run
	case 15:
		if b > 240 {
			w.hasty = w.hasty || w.ending
			w.ending = true
			w.step(Shutdown{Reason: "fuzz"})
		}
	}
}

func (w *world) step(e Event) {
	if w.finished {
		return
	}
	acts := append([]Action(nil), w.m.Step(w.now, e)...)
	for _, a := range acts {
		switch a := a.(type) {
		case Spawn:
			if p := w.procs[a.Name]; p != nil && (p.main || p.leftover) {
				w.t.Fatalf("%s spawned while its last run is alive: %+v", a.Name, p)
			}
			w.pids++
			if w.pids%7 == 0 {
				w.step(SpawnFailed{Name: a.Name, Error: "no", Permanent: w.pids%2 == 0})
				continue
			}
			w.procs[a.Name] = &process{pid: w.pids, main: true}
			w.step(Spawned{a.Name, w.pids})
		case Signal:
			p := w.procs[a.Name]
			if p == nil || !p.main {
				w.t.Fatalf("signal %d for %s, which has no main process", a.Signal, a.Name)
			}
			p.killAt = w.now.Add(policy.Grace)
			if w.ending {
				p.killAt = w.now.Add(7 * time.Second)
			}
			p.termed = true
		case SignalTree:
			p := w.procs[a.Name]
			if p == nil || !p.main && !p.leftover {
				w.t.Fatalf("signal %d for the tree of %s, of which nothing is alive", a.Signal, a.Name)
			}
			if a.Signal == sigKill && p.main && !w.ending && w.now.Before(p.killAt) {
				w.t.Fatalf("%s killed %v before the end of its grace", a.Name, p.killAt.Sub(w.now))
			}
			if a.Signal == sigKill && p.main && !p.termed && !w.hasty {
				w.t.Fatalf("%s killed without having been asked to end", a.Name)
			}
		case Finish:
			w.finished = true
		case SignalRest, Changed, Note, Dropped:
		}
	}
}

func (w *world) check() {
	for _, s := range w.m.order {
		p := w.procs[s.name]
		alive := p != nil && (p.main || p.leftover)
		if (s.pid != 0) != (p != nil && p.main) {
			w.t.Fatalf("%s: machine has pid %d, kernel %+v", s.name, s.pid, p)
		}
		switch s.state {
		case Down, Parked, Failed:
			if alive {
				w.t.Fatalf("%s is %s and alive", s.name, s.state)
			}
		case Backoff, Stopping, Killing:
			if s.deadline.IsZero() {
				w.t.Fatalf("%s is %s without a deadline", s.name, s.state)
			}
		case Waiting:
			if len(s.needs) == 0 {
				w.t.Fatalf("%s waits for nothing", s.name)
			}
		case Up:
			if !alive {
				w.t.Fatalf("%s is up and not alive", s.name)
			}
		case Starting:
			w.t.Fatalf("%s is still starting", s.name)
		}
	}
}

// shutdown must come to an end even if nothing ever dies.
func (w *world) shutdown() {
	w.ending = true
	w.step(Shutdown{Reason: "end"})
	begin := w.now
	for i := 0; !w.finished; i++ {
		at, ok := w.m.Deadline()
		if !ok || i > 200 {
			w.t.Fatalf("no end in sight after %d steps: %s", i, w.describe())
		}
		if at.After(w.now) {
			w.now = at
		}
		w.step(Tick{})
	}
	if took := w.now.Sub(begin); took > w.m.Budget {
		w.t.Fatalf("shutdown took %v", took)
	}
}

func (w *world) describe() string {
	out := ""
	for _, s := range w.m.order {
		out += fmt.Sprintf("%s=%s(pid %d, leftover %v) ", s.name, s.state, s.pid, s.leftover)
	}
	return out
}
