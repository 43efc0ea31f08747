package health

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"sync/atomic"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/container/units"
	"hinit/internal/guard"
	"hinit/internal/proc"
	"hinit/supervisor"
)

// memoryPeriod is the time between two measurements of services.
const memoryPeriod = 5 * time.Second

// memoryLoop is the part of a [supervisor.Loop] that a memoryWatch needs. Tests replace it.
type memoryLoop interface {
	Snapshot() *supervisor.Snapshot
	Post(e supervisor.Event)
	ReapNow(ctx context.Context, dead ...int) error
	Ended() <-chan struct{}
}

// memoryWatch enforces the memory limits of services: it warns about a service above its limit, or restarts it. When the
// container runs out of memory, it also ends services, see decideShedding. It measures the services with a limit and, while
// memory is tight, all services that it may end. It reports an exceeded limit once, and again after a re-execution. Its
// goroutine starts with the first limit. A second goroutine searches for shared memory. Any goroutine may call its methods.
type memoryWatch struct {
	loop            memoryLoop
	containerMemory func() proc.ContainerMemory // returns the container's memory and its limit
	lastUsage       map[string]usageSample      // last measurement of each service, only while memory is tight
	// returns the memory of the services with these main PIDs
	measureServices    func(mains []int) []proc.Memory
	lastMessages       map[string]string                   // last message by service and kind, see isNewMessage; only for existing services
	measureShared      func() []boot.Measurement           // measures shared memory of services, which may take seconds
	sharedMemory       atomicMap[uint64, boot.Measurement] // result of the last search, by run; only while memory is tight
	sharedMeasuredAt   time.Time                           // start of the last search
	changedStartsAt    time.Time                           // time of the last change between refused and allowed starts
	previousBootMemory atomicMap[string, uint64]           // memory of gateways before this boot, by service; nil if unknown
	config             atomic.Pointer[config.Config]
	statusNotes        atomicMap[string, string]
	started            atomic.Bool
}

// configure applies the memory limits of cfg. The first limit starts the goroutine.
func (w *memoryWatch) configure(cfg *config.Config) {
	w.config.Store(cfg)
	limited := cfg.AnySettings(func(s *config.ProcessSettings) bool { return s.Memory.IsSet() })
	if (limited || w.containerMemory().Limit > 0) && w.started.CompareAndSwap(false, true) {
		guard.Go("watching memory", w.watch)
	}
}

// atomicMap maps services or runs to values. Its writer replaces the whole map, so readers need no lock.
type atomicMap[K comparable, V any] struct {
	atomic.Pointer[map[K]V]
}

// all returns the whole table. The caller must not change it.
func (t *atomicMap[K, V]) all() map[K]V {
	if all := t.Load(); all != nil {
		return *all
	}
	return nil
}

// get returns the value for a service, or the zero value.
func (t *atomicMap[K, V]) get(service K) V { return t.all()[service] }

func (w *memoryWatch) watch() {
	w.lastUsage, w.lastMessages = make(map[string]usageSample), make(map[string]string)
	due := time.After(memoryPeriod)
	looked := time.Now()
	for {
		select {
		case now := <-due:
			if now.Sub(looked) >= memoryPeriod {
				w.measureAll()
				// make the loop sample Config.OOMKills; ReapNow fails only if the container ends
				_ = w.loop.ReapNow(context.Background())
				looked = now
			}
			due = time.After(memoryPeriod)
			if w.shedOrAdmit() {
				due = time.After(pressurePeriod)
			}
		case <-w.loop.Ended():
			return
		}
	}
}

// measureAll measures the running services with a memory limit, and acts on those above it. It also replaces the notes about
// memory in the status.
func (w *memoryWatch) measureAll() {
	var services []*supervisor.Service
	var mains []int
	for _, v := range w.loop.Snapshot().Services {
		if v.State == supervisor.Up && v.PID != 0 && units.SettingsOf(w.config.Load(), v).Memory.IsSet() {
			services, mains = append(services, v), append(mains, v.PID)
		}
	}
	notes := make(map[string]string)
	if len(mains) > 0 {
		for i, m := range sumByProfile(services, w.measureServices(mains)) {
			if note := w.checkLimit(services[i], m); note != "" {
				notes[services[i].Name] = note
			}
		}
	}
	w.statusNotes.Store(&notes)
	maps.DeleteFunc(w.lastMessages, func(key, _ string) bool { return w.loop.Snapshot().Find(path.Dir(key)) == nil })
}

// sumByProfile adds up the memory of all services of a profile, such as its gateway and its workers, because a limit in
// hinit.yaml is for the whole profile. In the result, the largest of these services has the sum. Services with a control group
// stay as they are, because the group already measures all of them together.
func sumByProfile(services []*supervisor.Service, measured []proc.Memory) []proc.Memory {
	largest, sums := make(map[string]int), make(map[string]uint64)
	for i, m := range measured {
		if profile := services[i].Profile; profile != "" && !m.HasOwnCgroup {
			if at, known := largest[profile]; !known || m.Bytes > measured[at].Bytes {
				largest[profile] = i
			}
			sums[profile] += m.Bytes
		}
	}
	for profile, i := range largest {
		measured[i].Bytes = sums[profile]
	}
	return measured
}

const (
	aboveLimitText = " is above memory.warn "
	belowLimitText = " is below memory.warn again"
)

// checkLimit compares the memory of a service with its limit. Above the limit, it warns or restarts the service. It returns a
// note for the status.
func (w *memoryWatch) checkLimit(v *supervisor.Service, m proc.Memory) (note string) {
	limit, has := units.SettingsOf(w.config.Load(), v).Memory, m.Bytes
	text := "memory: " + formatBytes(has)
	switch {
	case !m.HasOwnCgroup:
		limit = limit.WithoutCgroup()
	case m.OOMKills > 0 && v.Kind != supervisor.KindRun: // a KindRun command shares the control group of its gateway, which gets the message
		killed := fmt.Sprintf("memory: the kernel has killed %d of its processes because the service may have no more than %s", m.OOMKills, limit.Max.Text())
		if w.isNewMessage(v, "killed", killed) {
			w.loop.Post(supervisor.Remark{Service: v.Name, Text: killed})
		}
	}
	switch {
	case limit.RestartAbove > 0 && has >= uint64(limit.RestartAbove):
		text += " of " + formatBytes(uint64(limit.RestartAbove))
		w.loop.Post(supervisor.Unhealthy{Name: v.Name, Run: v.Run, Answer: text})
		return text
	case limit.WarnAbove > 0 && has >= uint64(limit.WarnAbove):
		note = text + aboveLimitText + formatBytes(uint64(limit.WarnAbove))
		if w.isNewMessage(v, "warn", aboveLimitText) {
			w.loop.Post(supervisor.Remark{Service: v.Name, Text: note})
		}
	// A warning ends only 10 % below memory.warn. Otherwise a service near the limit would cause many warnings.
	case limit.WarnAbove > 0 && has < uint64(limit.WarnAbove)/10*9 && w.lastMessages[v.Name+"/warn"] == fmt.Sprint(v.Run, aboveLimitText):
		w.isNewMessage(v, "warn", belowLimitText)
		w.loop.Post(supervisor.Remark{Service: v.Name, Text: text + belowLimitText})
	}
	return note
}

// isNewMessage reports whether text differs from the last message of the same kind (key) about the present run, and stores it.
func (w *memoryWatch) isNewMessage(v *supervisor.Service, key, text string) bool {
	key, text = v.Name+"/"+key, fmt.Sprint(v.Run, text)
	repeated := w.lastMessages[key] == text
	w.lastMessages[key] = text
	return !repeated
}

// formatBytes formats a number of bytes for people.
func formatBytes(n uint64) string {
	if n >= 1<<30 {
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

// Thresholds in percent of the container's memory limit. Only stallPercent is in percent of time: processes stall while they
// wait for the kernel to free memory (PSI).
const (
	stalledRefusePercent = 80   // percentage of used memory for refusing starts if processes stall, or if starts are already refused
	refusePercent        = 90   // percentage of used memory for refusing starts in any case
	stalledShedPercent   = 90   // percentage of used memory for ending a service if processes stall
	shedPercent          = 95   // percentage of used memory for ending a service in any case
	stallPercent         = 10.0 // percentage of time that processes wait for memory; above it, they stall

	// pressurePeriod is the time between two measurements of the container while memory is tight.
	pressurePeriod = time.Second
	// sharedMemoryPeriod is the minimum time between two searches for shared memory.
	sharedMemoryPeriod = 10 * time.Second
)

// memoryPressure is the input of decideShedding: the container's memory, and the services that hinit may end or delay.
type memoryPressure struct {
	container     proc.ContainerMemory
	startsRefused bool   // starts are currently refused
	unownedBytes  uint64 // used memory that belongs to no service
	services      []shedCandidate
}

// shedCandidate is a service that hinit may end, or whose start it may delay, to save memory.
type shedCandidate struct {
	name                    string
	priority                int           // a service with a higher priority is ended later
	idle                    time.Duration // time since the service last used the processor
	bytes                   uint64        // memory of the service; if it is not running, its memory at the last measurement
	hiddenMemoryReason      string        // why the service may have memory that hinit can't see; "" if hinit sees all its memory
	running, isStartDelayed bool
	isEnding                bool
}

// shedDecision is the result of [decideShedding]: a service to end because memory is short, and a waiting service to start.
type shedDecision struct {
	refuseStarts                 bool
	mostlyUnowned                bool   // most memory in use belongs to no service, so hinit ends only services that may have hidden memory
	serviceToEnd, serviceToStart string // the service to end, and the service to start; "" for none
	hiddenMemoryReason           string // why the service to end may have memory that hinit can't see
}

// decideShedding chooses at most one service to end, and one to start. It ends the service from chooseVictim, unless an earlier
// one is still ending. If most memory in use belongs to no service, it ends only a service that may hide memory. It starts the
// most important waiting service whose memory fits.
func decideShedding(p memoryPressure) (d shedDecision) {
	c := p.container
	if c.Limit == 0 {
		return d
	}
	share := float64(c.Used) / float64(c.Limit) * 100
	stalled := c.Stalled >= stallPercent
	d.refuseStarts = share >= refusePercent || share >= stalledRefusePercent && (p.startsRefused || stalled)
	d.mostlyUnowned = d.refuseStarts && p.unownedBytes > c.Used/2
	ending := slices.ContainsFunc(p.services, func(s shedCandidate) bool { return s.isEnding })
	if (share >= shedPercent || share >= stalledShedPercent && stalled) && !ending {
		d.serviceToEnd, d.hiddenMemoryReason = chooseVictim(p.services, d.mostlyUnowned)
	}
	best := -1
	for _, s := range p.services {
		if fits := float64(c.Used+s.bytes) < float64(c.Limit)*stalledRefusePercent/100; s.isStartDelayed && fits && !d.refuseStarts && s.priority > best {
			d.serviceToStart, best = s.name, s.priority
		}
	}
	return d
}

// chooseVictim returns the service to end: of the running services with the lowest priority, the one that has been idle
// longest. The name is "" without such a service. It skips services with less than a quarter of the average memory, because
// their end would free little. If hiding is set, it considers only services that may hide memory, whatever their size. hides
// says why the chosen service may hide memory.
func chooseVictim(services []shedCandidate, hiding bool) (name, hides string) {
	all, total := slices.DeleteFunc(slices.Clone(services), func(s shedCandidate) bool { return !s.running || hiding && s.hiddenMemoryReason == "" }), uint64(0)
	slices.SortFunc(all, func(a, b shedCandidate) int {
		return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(b.idle, a.idle), cmp.Compare(b.bytes, a.bytes))
	})
	lowest := slices.DeleteFunc(slices.Clone(all), func(s shedCandidate) bool { return s.priority > all[0].priority })
	for _, s := range lowest {
		total += s.bytes
	}
	for _, s := range lowest {
		if hiding || s.bytes*4*uint64(len(lowest)) >= total {
			return s.name, s.hiddenMemoryReason
		}
	}
	return "", ""
}

// priorityRanks orders the priorities. A service with any other priority is never ended or delayed.
var priorityRanks = map[string]int{config.PriorityLow: 0, config.PriorityNormal: 1, config.PriorityHigh: 2}

// usageSample is the last measurement of a service.
type usageSample struct {
	cpu   uint64
	since time.Time // when the service last used processor time
	bytes uint64
}

// shedOrAdmit measures the container's memory. It may then end a service to free memory, or start a service that waits for
// memory, see decideShedding. pressed reports whether at least stalledRefusePercent percent are used; the caller then measures
// more often.
func (w *memoryWatch) shedOrAdmit() (pressed bool) {
	var c proc.ContainerMemory
	blocking.Run(blocking.ShortCalls, func() { c = w.containerMemory() })
	snapshot := w.loop.Snapshot()
	pressed = c.Limit > 0 && c.Used >= c.Limit/100*stalledRefusePercent
	p := memoryPressure{container: c, startsRefused: snapshot.HoldReason != ""}
	p.services, p.unownedBytes = w.candidates(snapshot, pressed, c.Used)
	if !pressed && !p.startsRefused && !slices.ContainsFunc(p.services, func(s shedCandidate) bool { return s.isStartDelayed }) {
		clear(w.lastUsage)
		w.sharedMemory.Store(nil)
		return false
	}
	d, text := decideShedding(p), ""
	if d.refuseStarts {
		text = fmt.Sprintf("waits for memory: %d %% of %s are used", c.Used*100/c.Limit, formatBytes(c.Limit))
	}
	if d.serviceToEnd != "" {
		w.loop.Post(supervisor.Hold{Name: d.serviceToEnd, Reason: "shed, " + d.hiddenMemoryReason + text + "; starts when there is room, or by: hinit start " + d.serviceToEnd})
	}
	if d.mostlyUnowned {
		text += fmt.Sprintf("; %s belong to no service, so none is ended that hinit can examine; %s are memory of the kernel, such as data in sockets; "+
			"%s are shared memory or files in memory, see: df -h -t tmpfs", formatBytes(p.unownedBytes), formatBytes(c.Kernel), formatBytes(c.Shared))
	}
	if d.refuseStarts != p.startsRefused || text != snapshot.HoldReason && time.Since(w.changedStartsAt) >= time.Minute {
		w.changedStartsAt = time.Now()
		w.loop.Post(supervisor.HoldStarts{Reason: text})
	}
	if d.serviceToStart != "" {
		w.loop.Post(supervisor.Hold{Name: d.serviceToStart})
	}
	if (p.unownedBytes > c.Used/4 || len(w.sharedMemory.all()) > 0) && time.Since(w.sharedMeasuredAt) >= sharedMemoryPeriod {
		w.sharedMeasuredAt = time.Now()
		guard.Go("searching for shared memory", func() {
			found := make(map[uint64]boot.Measurement)
			for _, f := range w.measureShared() {
				found[f.Run] = f
			}
			w.sharedMemory.Store(&found)
		})
	}
	return pressed
}

// candidates returns all services in the form for decideShedding. A service that may not be ended or delayed has only its name
// set. If pressed is set, candidates measures the running services. unowned is the number of used bytes that belong to none of
// them.
func (w *memoryWatch) candidates(snapshot *supervisor.Snapshot, pressed bool, used uint64) (list []shedCandidate, unowned uint64) {
	var mains, at []int
	for _, v := range snapshot.Services {
		if v.PID != 0 {
			mains, at = append(mains, v.PID), append(at, len(list))
		}
		s := shedCandidate{name: v.Name}
		if rank, sheds := priorityRanks[units.SettingsOf(w.config.Load(), v).Priority.Class]; sheds {
			s = shedCandidate{
				name: v.Name, priority: rank, bytes: cmp.Or(w.lastUsage[v.Name].bytes, w.previousBootMemory.get(v.Name)), running: v.State == supervisor.Up && v.PID != 0,
				isStartDelayed: v.IsHeld && v.State == supervisor.Waiting, isEnding: v.State == supervisor.Stopping || v.State == supervisor.Killing,
			}
		}
		list = append(list, s)
	}
	if !pressed {
		return list, 0
	}
	maps.DeleteFunc(w.lastUsage, func(name string, _ usageSample) bool { return snapshot.Find(name) == nil })
	now := time.Now()
	for i, m := range w.measureServices(mains) {
		s, found := &list[at[i]], w.sharedMemory.get(snapshot.Services[at[i]].Run)
		seen, known := w.lastUsage[s.name]
		if !known || seen.cpu != m.CPU {
			seen.since = now
		}
		// A file in memory that a process both maps and has open counts in both numbers, so take the larger number.
		seen.cpu, seen.bytes = m.CPU, m.Bytes-min(m.Bytes, m.Swapped+m.Shared)+max(m.Shared, found.Bytes)
		w.lastUsage[s.name] = seen
		s.idle, s.bytes, s.hiddenMemoryReason = now.Sub(seen.since), seen.bytes, found.Note
		used -= min(used, seen.bytes)
	}
	return list, used
}
