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
	low := shedCandidate{name: "low", priority: 0, idle: time.Minute, bytes: 100, running: true}
	idler := shedCandidate{name: "idler", priority: 0, idle: time.Hour, bytes: 50, running: true}
	calm := shedCandidate{name: "calm", priority: 0, idle: time.Hour, bytes: 2, running: true}
	large := shedCandidate{name: "large", priority: 0, idle: time.Minute, bytes: 300, running: true}
	normal := shedCandidate{name: "normal", priority: 1, idle: 5 * time.Hour, bytes: 500, running: true}
	hider := shedCandidate{name: "hider", priority: 1, bytes: 1, running: true, hiddenMemoryReason: "x"}
	held := func(c shedCandidate) shedCandidate { c.running, c.isStartDelayed = false, true; return c }
	ending := func(c shedCandidate) shedCandidate { c.running, c.isEnding = false, true; return c }
	for _, tt := range []struct {
		what     string
		used     uint64
		stalled  float64
		full     bool
		unowned  uint64
		services []shedCandidate
		want     shedDecision
	}{
		{"there is room", 500, 50, false, 0, []shedCandidate{low, normal}, shedDecision{}},
		{"it is tight", 850, 0, false, 0, []shedCandidate{low}, shedDecision{}},
		{"it is tight and processes stall", 850, 15, false, 0, []shedCandidate{low}, shedDecision{refuseStarts: true}},
		{"starts were refused", 850, 0, true, 0, []shedCandidate{low}, shedDecision{refuseStarts: true}},
		{"nearly full", 920, 0, false, 0, []shedCandidate{low, normal}, shedDecision{refuseStarts: true}},
		{"nearly full and processes stall", 920, 15, false, 0, []shedCandidate{normal, low}, shedDecision{refuseStarts: true, serviceToEnd: "low"}},
		{"the lowest goes first, however large and idle the other is", 960, 0, true, 0, []shedCandidate{normal, low}, shedDecision{refuseStarts: true, serviceToEnd: "low"}},
		{"then the idlest", 960, 0, true, 0, []shedCandidate{low, large, idler}, shedDecision{refuseStarts: true, serviceToEnd: "idler"}},
		{"then the largest", 960, 0, true, 0, []shedCandidate{low, large}, shedDecision{refuseStarts: true, serviceToEnd: "large"}},
		{"one with next to nothing stays, however idle", 960, 0, true, 0, []shedCandidate{calm, low, large}, shedDecision{refuseStarts: true, serviceToEnd: "large"}},
		{"most of it belongs to no service", 960, 90, true, 500, []shedCandidate{low, large}, shedDecision{refuseStarts: true, mostlyUnowned: true}},
		{"one of them may hide it", 960, 0, true, 500, []shedCandidate{low, hider, large}, shedDecision{refuseStarts: true, mostlyUnowned: true, serviceToEnd: "hider", hiddenMemoryReason: "x"}},
		{"some of it belongs to no service", 960, 0, true, 480, []shedCandidate{low, large}, shedDecision{refuseStarts: true, serviceToEnd: "large"}},
		{"there is room, whoever has the rest", 700, 0, true, 600, []shedCandidate{low}, shedDecision{}},
		{"one at a time", 990, 90, true, 0, []shedCandidate{low, ending(large)}, shedDecision{refuseStarts: true}},
		{"all are critical", 990, 90, true, 0, nil, shedDecision{refuseStarts: true}},
		{"starts are allowed again", 700, 0, true, 0, []shedCandidate{low}, shedDecision{}},
		{"the most important one comes back first", 200, 0, false, 0, []shedCandidate{held(low), held(normal)}, shedDecision{serviceToStart: "normal"}},
		{"one that does not fit lets another one by", 400, 0, false, 0, []shedCandidate{held(low), held(normal)}, shedDecision{serviceToStart: "low"}},
		{"none fits", 750, 0, false, 0, []shedCandidate{held(low)}, shedDecision{}},
		{"none comes back while starts are refused", 810, 0, true, 0, []shedCandidate{held(idler)}, shedDecision{refuseStarts: true}},
	} {
		p := memoryPressure{container: proc.ContainerMemory{Used: tt.used, Limit: 1000, Stalled: tt.stalled}, startsRefused: tt.full, unownedBytes: tt.unowned, services: tt.services}
		if got := decideShedding(p); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.what, got, tt.want)
		}
	}
	if got := decideShedding(memoryPressure{container: proc.ContainerMemory{Used: 5}, services: []shedCandidate{low}}); got != (shedDecision{}) {
		t.Errorf("without a limit: %+v", got)
	}
}

// lowMemoryWatch is a memoryWatch of three services in a container that uses 960 of 1000 MiB. Each service has `own` bytes
// (50 MiB at first), of which it can share 10 MiB, and `extra` bytes that are swapped out.
type lowMemoryWatch struct {
	memoryWatch

	serviceBytes, swappedBytes uint64
	refused, ended             []string // reasons for refused starts, and names of ended services
}

const mebibyte = 1 << 20

func newLowMemoryWatch(search func() []boot.Measurement) *lowMemoryWatch {
	services := make(map[string]config.Service)
	snapshot := &supervisor.Snapshot{}
	for i, name := range []string{"a", "b", "eater"} {
		services[name] = config.Service{ProcessSettings: config.ProcessSettings{Priority: config.Priority{Class: config.PriorityNormal}}}
		snapshot.Services = append(snapshot.Services, &supervisor.Service{Name: name, Kind: supervisor.KindService, State: supervisor.Up, PID: 7 + i, Run: uint64(1 + i)})
	}
	w := &lowMemoryWatch{serviceBytes: 50 * mebibyte}
	w.memoryWatch = memoryWatch{
		lastUsage: make(map[string]usageSample), measureShared: search,
		containerMemory: func() proc.ContainerMemory {
			return proc.ContainerMemory{Used: 960 * mebibyte, Limit: 1000 * mebibyte, Shared: 800 * mebibyte, Kernel: 10 * mebibyte}
		},
		measureServices: func(mains []int) []proc.Memory {
			return slices.Repeat([]proc.Memory{{Bytes: w.serviceBytes + w.swappedBytes, Swapped: w.swappedBytes, Shared: 10 * mebibyte}}, len(mains))
		},
		loop: &fakeLoop{Loop: supervisor.NewLoop(supervisor.Config{}), snapshot: snapshot, post: func(e supervisor.Event) {
			switch e := e.(type) {
			case supervisor.HoldStarts:
				w.refused, snapshot.HoldReason = append(w.refused, e.Reason), e.Reason
			case supervisor.Hold:
				w.ended = append(w.ended, e.Name)
			}
		}},
	}
	w.config.Store(&config.Config{Services: services})
	return w
}

// Memory that belongs to no service, such as files in /dev/shm, must not make hinit end idle services. hinit must say where
// this memory is, and must find a service that holds it in files without a name.
func TestIdleServicesWereEndedForMemoryOfNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// a measurement of an earlier run, which does not count
		found := []boot.Measurement{{Service: "eater", Run: 99, Bytes: 700 * mebibyte}}
		w := newLowMemoryWatch(func() []boot.Measurement { return found })
		for range 3 {
			w.shedOrAdmit()
			synctest.Wait()
			w.swappedBytes = 400 * mebibyte // swapped out, so not part of the 960 MiB
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
	w := newLowMemoryWatch(nil)
	w.measureServices = func([]int) []proc.Memory {
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
		w := newLowMemoryWatch(func() []boot.Measurement { searches++; <-answer; return nil })
		w.shedOrAdmit()
		close(answer)
		synctest.Wait()
		w.serviceBytes = 300 * mebibyte // now all memory belongs to a service
		for range 3 {
			time.Sleep(sharedMemoryPeriod)
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
			w := newLowMemoryWatch(func() []boot.Measurement { searches++; return nil })
			w.serviceBytes = 5 * mebibyte
			w.containerMemory = func() proc.ContainerMemory {
				return proc.ContainerMemory{Used: used * mebibyte, Limit: 100 * mebibyte, Shared: 70 * mebibyte}
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
		w := newLowMemoryWatch(func() []boot.Measurement { return nil })
		used := uint64(910 * mebibyte)
		w.containerMemory = func() proc.ContainerMemory { return proc.ContainerMemory{Used: used, Limit: 1000 * mebibyte} }
		w.serviceBytes = 300 * mebibyte
		for range 90 {
			w.shedOrAdmit()
			used = 940 * mebibyte
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
		w := newLowMemoryWatch(func() []boot.Measurement { return nil })
		for i := range 30 {
			w.serviceBytes = uint64(50+250*(i%2)) * mebibyte
			w.shedOrAdmit()
			time.Sleep(pressurePeriod)
		}
		synctest.Wait()
		if len(w.refused) != 1 {
			t.Errorf("refused: %q", w.refused)
		}
	})
}
