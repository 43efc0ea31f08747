package health

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"hinit/internal/config"
	"hinit/internal/proc"
	"hinit/supervisor"
)

// The crossing of a memory limit must be reported once, and the reason of the restart must contain the measured size.
func TestALimitIsReportedOncePerCrossing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var messages []string
		bytes, grouped, killed := uint64(10<<20), false, uint64(0)
		ended := make(chan struct{})
		snapshot := &supervisor.Snapshot{Services: []*supervisor.Service{
			{Name: "a", Kind: supervisor.KindService, State: supervisor.Up, PID: 7, Run: 1, ProcessSince: time.Now()},
			{Name: "free", Kind: supervisor.KindService, State: supervisor.Up, PID: 8, Run: 2},
			{Name: "gone", State: supervisor.Down},
		}}
		loop := &fakeLoop{Loop: supervisor.NewLoop(supervisor.Config{}), snapshot: snapshot, ended: ended}
		var last supervisor.Event
		loop.post = func(e supervisor.Event) {
			mu.Lock()
			defer mu.Unlock()
			last = e
			switch e := e.(type) {
			case supervisor.Remark:
				messages = append(messages, e.Text)
			case supervisor.Unhealthy:
				messages = append(messages, "restart "+e.Name+": "+e.Answer)
			}
		}
		w := &memoryWatch{loop: loop, containerMemory: func() (none proc.ContainerMemory) { return none }, measureServices: func(mains []int) []proc.Memory {
			if !slices.Equal(mains, []int{7}) {
				t.Errorf("it measures %d", mains)
			}
			mu.Lock()
			defer mu.Unlock()
			return []proc.Memory{{Bytes: bytes, HasOwnCgroup: grouped, OOMKills: killed}}
		}}
		w.configure(&config.Config{Services: map[string]config.Service{
			"a":    {ProcessSettings: config.ProcessSettings{Memory: config.Memory{WarnAbove: 512 << 20, Max: 1 << 30}}},
			"free": {},
		}})
		step := func(has uint64, want ...string) {
			t.Helper()
			mu.Lock()
			messages, bytes = nil, has<<20
			mu.Unlock()
			time.Sleep(memoryPeriod)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(messages, want) {
				t.Errorf("at %d MiB it says %q, not %q", has, messages, want)
			}
		}
		step(500)
		if w.statusNotes.get("a") != "" {
			t.Errorf("the note is %q", w.statusNotes.get("a"))
		}
		step(600, "memory: 600 MiB is above memory.warn 512 MiB")
		if w.statusNotes.get("a") != "memory: 600 MiB is above memory.warn 512 MiB" {
			t.Errorf("the note is %q", w.statusNotes.get("a"))
		}
		step(1229, "restart a: memory: 1.2 GiB of 1.0 GiB")
		if e := last.(supervisor.Unhealthy); e.Run != 1 || e.Park {
			t.Errorf("it is told %+v", e)
		}
		mu.Lock()
		grouped, killed = true, 2
		mu.Unlock()
		step(1229, "memory: the kernel has killed 2 of its processes because the service may have no more than 1GiB")
		step(400, "memory: 400 MiB is below memory.warn again")
		step(400)
		close(ended)
		synctest.Wait()
	})
}

// memory.max of a profile must also end a worker of the task board for this profile, not only the gateway.
func TestAWorkerFilledTheMemoryThatItsProfileMustNot(t *testing.T) {
	loop := &fakeLoop{Loop: supervisor.NewLoop(supervisor.Config{}), snapshot: &supervisor.Snapshot{Services: []*supervisor.Service{
		{Name: "run/t_1", Kind: supervisor.KindRun, Profile: "coder", State: supervisor.Up, PID: 7, Run: 1},
		{Name: "run/other", Kind: supervisor.KindRun, State: supervisor.Up, PID: 8, Run: 2},
	}}}
	var got []supervisor.Event
	loop.post = func(e supervisor.Event) { got = append(got, e) }
	w := &memoryWatch{loop: loop, lastMessages: map[string]string{}, measureServices: func(mains []int) []proc.Memory {
		return slices.Repeat([]proc.Memory{{Bytes: 2 << 30}}, len(mains))
	}}
	w.config.Store(&config.Config{Agent: config.Agent{ProcessSettings: config.ProcessSettings{Memory: config.Memory{WarnAbove: 1 << 20, Max: 1 << 30}}}})
	w.measureAll()
	want := supervisor.Unhealthy{Name: "run/t_1", Run: 1, Answer: "memory: 2.0 GiB of 1.0 GiB"}
	if len(got) != 1 || got[0] != want {
		t.Errorf("it does %+v, not %+v", got, want)
	}
}

// Without control groups memory.max must count the gateway of a profile and its workers together, and the largest must end. A
// limit for each process alone would give a profile several times its memory.
func TestEachWorkerHadTheWholeMemoryOfItsProfile(t *testing.T) {
	loop := &fakeLoop{Loop: supervisor.NewLoop(supervisor.Config{}), snapshot: &supervisor.Snapshot{Services: []*supervisor.Service{
		{Name: "gateway-coder", Kind: supervisor.KindGateway, Profile: "coder", State: supervisor.Up, PID: 6, Run: 1},
		{Name: "run/t_1", Kind: supervisor.KindRun, Profile: "coder", State: supervisor.Up, PID: 7, Run: 2},
		{Name: "run/t_2", Kind: supervisor.KindRun, Profile: "coder", State: supervisor.Up, PID: 8, Run: 3},
		{Name: "gateway-writer", Kind: supervisor.KindGateway, Profile: "writer", State: supervisor.Up, PID: 9, Run: 4},
	}}}
	var got []supervisor.Event
	loop.post = func(e supervisor.Event) { got = append(got, e) }
	for _, grouped := range []bool{false, true} {
		got = nil
		w := &memoryWatch{loop: loop, lastMessages: map[string]string{}, measureServices: func([]int) []proc.Memory {
			return []proc.Memory{
				{Bytes: 300 << 20, HasOwnCgroup: grouped},
				{Bytes: 500 << 20, HasOwnCgroup: grouped},
				{Bytes: 400 << 20, HasOwnCgroup: grouped},
				{Bytes: 900 << 20, HasOwnCgroup: grouped},
			}
		}}
		w.config.Store(&config.Config{Agent: config.Agent{ProcessSettings: config.ProcessSettings{Memory: config.Memory{Max: 1 << 30}}}})
		w.measureAll()
		want := []supervisor.Event{supervisor.Unhealthy{Name: "run/t_1", Run: 2, Answer: "memory: 1.2 GiB of 1.0 GiB"}}
		if grouped { // all processes of a profile have one control group, and each measurement has the numbers of the group
			want = nil
		}
		if !slices.Equal(got, want) {
			t.Errorf("it does %+v, not %+v", got, want)
		}
	}
}

// PID 1 must keep no record of a removed service, even if the service has been above its limit or has run while memory was
// tight. An agent can make any number of services.
func TestTheMemoryWatchForgetsServicesThatAreGone(t *testing.T) {
	loop := &fakeLoop{Loop: supervisor.NewLoop(supervisor.Config{}), snapshot: new(supervisor.Snapshot), post: func(supervisor.Event) {}}
	w := &memoryWatch{loop: loop, lastMessages: map[string]string{}, lastUsage: map[string]usageSample{}, measureServices: func(mains []int) []proc.Memory {
		return slices.Repeat([]proc.Memory{{Bytes: 2 << 20}}, len(mains))
	}}
	w.config.Store(&config.Config{Agent: config.Agent{ProcessSettings: config.ProcessSettings{Memory: config.Memory{WarnAbove: 1 << 20}}}})
	for _, profile := range []string{"one", "two", "three"} {
		loop.snapshot = &supervisor.Snapshot{Services: []*supervisor.Service{
			{Name: "gateway-" + profile, Kind: supervisor.KindGateway, Profile: profile, State: supervisor.Up, PID: 7, Run: 1},
		}}
		w.measureAll()
		w.candidates(loop.snapshot, true, 1<<30)
		if len(w.lastMessages) != 1 || len(w.lastUsage) != 1 {
			t.Errorf("it remembers %q and %v", w.lastMessages, w.lastUsage)
		}
	}
}

// fakeLoop is a Loop that returns the test's snapshot and passes events to the test.
type fakeLoop struct {
	*supervisor.Loop

	snapshot *supervisor.Snapshot
	ended    chan struct{}
	post     func(supervisor.Event)
}

func (w *fakeLoop) Snapshot() *supervisor.Snapshot        { return w.snapshot }
func (w *fakeLoop) Ended() <-chan struct{}                { return w.ended }
func (w *fakeLoop) Post(e supervisor.Event)               { w.post(e) }
func (w *fakeLoop) ReapNow(context.Context, ...int) error { return nil }
