package health

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/proc"
	"hinit/supervisor"
)

// Each row says which service hinit ends and whether it refuses starts. The container of the test has 1000 bytes of memory.
func TestWhoGoesWhenMemoryIsShort(t *testing.T) {
	low := candidate{name: "low", priority: 0, idle: time.Minute, bytes: 100, running: true}
	idler := candidate{name: "idler", priority: 0, idle: time.Hour, bytes: 50, running: true}
	calm := candidate{name: "calm", priority: 0, idle: time.Hour, bytes: 2, running: true}
	large := candidate{name: "large", priority: 0, idle: time.Minute, bytes: 300, running: true}
	normal := candidate{name: "normal", priority: 1, idle: 5 * time.Hour, bytes: 500, running: true}
	hider := candidate{name: "hider", priority: 1, bytes: 1, running: true, hides: "x"}
	held := func(c candidate) candidate { c.running, c.isHeld = false, true; return c }
	ending := func(c candidate) candidate { c.running, c.ending = false, true; return c }
	for _, tt := range []struct {
		what     string
		used     uint64
		stalled  float64
		full     bool
		unowned  uint64
		services []candidate
		want     decision
	}{
		{"there is room", 500, 50, false, 0, []candidate{low, normal}, decision{}},
		{"it is tight", 850, 0, false, 0, []candidate{low}, decision{}},
		{"it is tight and processes stall", 850, 15, false, 0, []candidate{low}, decision{refuseStarts: true}},
		{"starts were refused", 850, 0, true, 0, []candidate{low}, decision{refuseStarts: true}},
		{"nearly full", 920, 0, false, 0, []candidate{low, normal}, decision{refuseStarts: true}},
		{"nearly full and processes stall", 920, 15, false, 0, []candidate{normal, low}, decision{refuseStarts: true, shed: "low"}},
		{"the lowest goes first, however large and idle the other is", 960, 0, true, 0, []candidate{normal, low}, decision{refuseStarts: true, shed: "low"}},
		{"then the idlest", 960, 0, true, 0, []candidate{low, large, idler}, decision{refuseStarts: true, shed: "idler"}},
		{"then the largest", 960, 0, true, 0, []candidate{low, large}, decision{refuseStarts: true, shed: "large"}},
		{"one with next to nothing stays, however idle", 960, 0, true, 0, []candidate{calm, low, large}, decision{refuseStarts: true, shed: "large"}},
		{"most of it belongs to no service", 960, 90, true, 500, []candidate{low, large}, decision{refuseStarts: true, unowned: true}},
		{"one of them may hide it", 960, 0, true, 500, []candidate{low, hider, large}, decision{refuseStarts: true, unowned: true, shed: "hider", hides: "x"}},
		{"some of it belongs to no service", 960, 0, true, 480, []candidate{low, large}, decision{refuseStarts: true, shed: "large"}},
		{"there is room, whoever has the rest", 700, 0, true, 600, []candidate{low}, decision{}},
		{"one at a time", 990, 90, true, 0, []candidate{low, ending(large)}, decision{refuseStarts: true}},
		{"all are critical", 990, 90, true, 0, nil, decision{refuseStarts: true}},
		{"starts are allowed again", 700, 0, true, 0, []candidate{low}, decision{}},
		{"the most important one comes back first", 200, 0, false, 0, []candidate{held(low), held(normal)}, decision{admit: "normal"}},
		{"one that does not fit lets another one by", 400, 0, false, 0, []candidate{held(low), held(normal)}, decision{admit: "low"}},
		{"none fits", 750, 0, false, 0, []candidate{held(low)}, decision{}},
		{"none comes back while starts are refused", 810, 0, true, 0, []candidate{held(idler)}, decision{refuseStarts: true}},
	} {
		p := pressure{container: proc.ContainerMemory{Used: tt.used, Limit: 1000, Stalled: tt.stalled}, startsRefused: tt.full, unowned: tt.unowned, services: tt.services}
		if got := decideShedding(p); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.what, got, tt.want)
		}
	}
	if got := decideShedding(pressure{container: proc.ContainerMemory{Used: 5}, services: []candidate{low}}); got != (decision{}) {
		t.Errorf("without a limit: %+v", got)
	}
}

// tightWatch is a memoryWatch of three services in a container that uses 960 of 1000 MiB. Each service has `own` bytes
// (50 MiB at first), of which it can share 10 MiB, and `extra` bytes that are swapped out.
type tightWatch struct {
	memoryWatch

	own, extra     uint64
	refused, ended []string // reasons for refused starts, and names of ended services
}

const mb = 1 << 20

func newTightWatch(search func() []boot.Measurement) *tightWatch {
	services := make(map[string]config.Service)
	snapshot := &supervisor.Snapshot{}
	for i, name := range []string{"a", "b", "eater"} {
		services[name] = config.Service{ProcessSettings: config.ProcessSettings{Priority: config.Priority{Class: config.PriorityNormal}}}
		snapshot.Services = append(snapshot.Services, &supervisor.Service{Name: name, Kind: supervisor.KindService, State: supervisor.Up, PID: 7 + i, Run: uint64(1 + i)})
	}
	w := &tightWatch{own: 50 * mb}
	w.memoryWatch = memoryWatch{
		lastUsage: make(map[string]usageSample), search: search,
		container: func() proc.ContainerMemory {
			return proc.ContainerMemory{Used: 960 * mb, Limit: 1000 * mb, Shared: 800 * mb, Kernel: 10 * mb}
		},
		measure: func(mains []int) []proc.Memory {
			return slices.Repeat([]proc.Memory{{Bytes: w.own + w.extra, Extra: w.extra, Shared: 10 * mb}}, len(mains))
		},
		loop: &watched{Loop: supervisor.NewLoop(supervisor.Config{}), snapshot: snapshot, post: func(e supervisor.Event) {
			switch e := e.(type) {
			case supervisor.HoldStarts:
				w.refused, snapshot.HoldReason = append(w.refused, e.Reason), e.Reason
			case supervisor.Hold:
				w.ended = append(w.ended, e.Name)
			}
		}},
	}
	w.limits.Store(&config.Config{Services: services})
	return w
}

// Memory that belongs to no service, such as files in /dev/shm, must not make hinit end idle services. hinit must say where
// this memory is, and must find a service that holds it in files without a name.
func TestIdleServicesWereEndedForMemoryOfNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// a measurement of an earlier run, which does not count
		found := []boot.Measurement{{Service: "eater", Run: 99, Bytes: 700 * mb}}
		w := newTightWatch(func() []boot.Measurement { return found })
		for range 3 {
			w.shedOrAdmit()
			synctest.Wait()
			w.extra = 400 * mb // swapped out, so not part of the 960 MiB
		}
		const want = "waits for memory: 96 % of 1000 MiB are used; 810 MiB belong to no service, so none is ended that hinit can examine; 10 MiB are memory of the kernel, such as data in sockets; 800 MiB are shared memory or files in memory, see: df -h -t tmpfs"
		if len(w.ended) > 0 || !slices.Equal(w.refused, []string{want}) {
			t.Errorf("ended: %q, refused: %q", w.ended, w.refused)
		}
		found[0].Run = 3
		time.Sleep(time.Minute)
		w.shedOrAdmit()
		synctest.Wait()
		w.shedOrAdmit()
		if !slices.Equal(w.ended, []string{"eater"}) || len(w.refused) != 2 || strings.Contains(w.refused[1], "no service") {
			t.Errorf("ended: %q, refused: %q", w.ended, w.refused)
		}
	})
}

// The page tables of a process must count as its service's memory. An agent that touches one page in each 2 MiB of its
// address space fills the memory with page tables.
func TestThePageTablesOfAnAgentBelongedToNoService(t *testing.T) {
	w := newTightWatch(nil)
	w.measure = func([]int) []proc.Memory {
		small := proc.ParseMemory("Name:\tsleep\nRssAnon:\t 51200 kB\nVmPTE:\t 100 kB\n")
		return []proc.Memory{small, small, proc.ParseMemory("Name:\teater\nRssAnon:\t 40960 kB\nVmPTE:\t 716800 kB\n")}
	}
	if w.shedOrAdmit(); !slices.Equal(w.ended, []string{"eater"}) {
		t.Errorf("ended: %q, refused: %q", w.ended, w.refused)
	}
}

// During the search for shared memory, memory limits must still be enforced and services still be ended. After a search without
// a result, the next one must not follow 10 seconds later, although memory is still tight.
func TestTheSearchForSharedMemoryDelayedAllElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		searches, answer := 0, make(chan struct{})
		w := newTightWatch(func() []boot.Measurement { searches++; <-answer; return nil })
		w.shedOrAdmit()
		close(answer)
		synctest.Wait()
		w.own = 300 * mb // now all memory belongs to a service
		for range 3 {
			time.Sleep(searchPeriod)
			w.shedOrAdmit()
		}
		synctest.Wait()
		if searches != 1 {
			t.Errorf("it has searched %d times", searches)
		}
	})
}

// The search for shared memory must begin early: a process that writes to a file in memory can take the last 10 % in a second.
// A container so small that less than 32 MiB are free at the threshold must search too.
func TestAFastWriterFilledTheMemoryBeforeTheSearch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, used := range []uint64{80, 99} {
			searches := 0
			w := newTightWatch(func() []boot.Measurement { searches++; return nil })
			w.own = 5 * mb
			w.container = func() proc.ContainerMemory {
				return proc.ContainerMemory{Used: used * mb, Limit: 100 * mb, Shared: 70 * mb}
			}
			w.shedOrAdmit()
			synctest.Wait()
			if searches != 1 {
				t.Errorf("at %d %% it has searched %d times", used, searches)
			}
		}
	})
}

// The reason why starts wait must show the present use of memory, not the use when the wait began, which may last for
// hours.
func TestTheReasonWhyStartsWaitKeptItsFirstNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTightWatch(func() []boot.Measurement { return nil })
		used := uint64(910 * mb)
		w.container = func() proc.ContainerMemory { return proc.ContainerMemory{Used: used, Limit: 1000 * mb} }
		w.own = 300 * mb
		for range 90 {
			w.shedOrAdmit()
			used = 940 * mb
			time.Sleep(pressurePeriod)
		}
		synctest.Wait()
		if len(w.refused) != 2 || !strings.Contains(w.refused[1], "94 % of 1000 MiB") {
			t.Errorf("refused: %q", w.refused)
		}
	})
}

// The reason why starts are refused must not alternate when the memory without a service is now above, now below half of the
// used memory. Each change is a line in the log.
func TestTheReasonWhyStartsAreRefusedChangedEverySecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTightWatch(func() []boot.Measurement { return nil })
		for i := range 30 {
			w.own = uint64(50+250*(i%2)) * mb
			w.shedOrAdmit()
			time.Sleep(pressurePeriod)
		}
		synctest.Wait()
		if len(w.refused) != 1 {
			t.Errorf("refused: %q", w.refused)
		}
	})
}
