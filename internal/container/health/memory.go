package health

import (
	"cmp"
	"context"
	"fmt"
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

// memoryPeriod is the time between two measurements of the memory of services.
const memoryPeriod = 5 * time.Second

// memoryLoop is the part of a [supervisor.Loop] that a memoryWatch uses.
type memoryLoop interface {
	Snapshot() *supervisor.Snapshot
	Post(e supervisor.Event)
	Sweep(ctx context.Context) error
	Ended() <-chan struct{}
}

// memoryWatch enforces the memory limits of services: it reports a service that exceeds its limit, or has it restarted. It also
// ends services when the container runs out of memory, see decide. It measures services that have a limit and, while memory is
// tight, all services that may be ended. It reports an exceeded limit once, and once more after a re-execution. Its goroutine
// starts with the first limit; a search has its own. Its methods may be called from any goroutine.
type memoryWatch struct {
	loop         memoryLoop
	container    func() proc.ContainerMemory     // returns how much memory the container uses, and its limit
	seen         map[string]activity             // last measurement, by service; kept only while memory is tight
	measure      func(mains []int) []proc.Memory // returns the memory of services, given the PIDs of their main processes
	lastMessages map[string]string               // last message, by service and kind of message, see firstTime
	search       func() []boot.Measurement       // measures the shared memory of services; may take seconds
	found        table[uint64, boot.Measurement] // shared memory that the last search found, by the number of the run; kept only while memory is tight
	searched     time.Time                       // when the last search began
	noticed      time.Time                       // when the reason why starts are refused was last changed
	memoryBefore table[string, uint64]           // memory of gateways as recorded before this boot, by service; nil if unknown
	limits       atomic.Pointer[config.Config]
	notes        table[string, string]
	started      atomic.Bool
}

// configure applies the memory limits in cfg, and starts the watch if cfg has a memory limit.
func (w *memoryWatch) configure(cfg *config.Config) {
	w.limits.Store(cfg)
	limited := cfg.AnySettings(func(s *config.ProcessSettings) bool { return s.Memory.IsSet() })
	if (limited || w.container().Limit > 0) && w.started.CompareAndSwap(false, true) {
		guard.Go("watching memory", w.watch)
	}
}

// table holds values by the name of the service or by the number of its run, such as remarks for the status.
type table[K comparable, V any] struct {
	atomic.Pointer[map[K]V]
}

// all returns the whole table, which the caller must not change.
func (t *table[K, V]) all() map[K]V {
	if all := t.Load(); all != nil {
		return *all
	}
	return nil
}

// of returns the value of a service, or the zero value if there is none.
func (t *table[K, V]) of(service K) V { return t.all()[service] }

func (w *memoryWatch) watch() {
	w.seen, w.lastMessages = make(map[string]activity), make(map[string]string)
	due := time.After(memoryPeriod)
	for looked := time.Now(); ; {
		select {
		case now := <-due:
			if now.Sub(looked) >= memoryPeriod {
				w.measureAll()
				_ = w.loop.Sweep(context.Background()) // lets the loop sample Config.OOMKills; fails only if the container ends
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

// measureAll measures the memory of the running services that have a memory limit, acts on the results, and replaces the notes
// for the status.
func (w *memoryWatch) measureAll() {
	var services []*supervisor.Service
	var mains []int
	for _, v := range w.loop.Snapshot().Services {
		if v.State == supervisor.Up && v.PID != 0 && units.SettingsOf(w.limits.Load(), v).Memory.IsSet() {
			services, mains = append(services, v), append(mains, v.PID)
		}
	}
	notes := make(map[string]string)
	if len(mains) > 0 {
		for i, m := range w.measure(mains) {
			if note := w.checkLimit(services[i], m); note != "" {
				notes[services[i].Name] = note
			}
		}
	}
	w.notes.Store(&notes)
}

const (
	above = " is above memory.warn "
	below = " is below memory.warn again"
)

// checkLimit compares a service's memory with its memory limit, acts on the result, and returns the note for the status.
func (w *memoryWatch) checkLimit(v *supervisor.Service, m proc.Memory) (note string) {
	limit, has := units.SettingsOf(w.limits.Load(), v).Memory, m.Bytes
	text := "memory: " + amount(has)
	switch {
	case !m.HasOwnCgroup:
		limit = limit.Supervised()
	case m.OOMKills > 0 && v.Kind != supervisor.KindRun: // a command of a profile is in the control group of its gateway
		killed := fmt.Sprintf("memory: the kernel has killed %d of its processes because the service may have no more than %s", m.OOMKills, limit.Max.Text())
		if w.firstTime(v, "killed", killed) {
			w.loop.Post(supervisor.Remark{Service: v.Name, Text: killed})
		}
	}
	switch {
	case limit.Restart > 0 && has >= uint64(limit.Restart):
		text += " of " + amount(uint64(limit.Restart))
		w.loop.Post(supervisor.Unhealthy{Name: v.Name, Run: v.Run, Answer: text})
		return text
	case limit.Warn > 0 && has >= uint64(limit.Warn):
		note = text + above + amount(uint64(limit.Warn))
		if w.firstTime(v, "warn", above) {
			w.loop.Post(supervisor.Remark{Service: v.Name, Text: note})
		}
	// Report that the excess has ended only at 10 % below memory.warn, to avoid repeated warnings.
	case limit.Warn > 0 && has < uint64(limit.Warn)/10*9 && w.lastMessages[v.Name+"/warn"] == fmt.Sprint(v.Run, above):
		w.firstTime(v, "warn", below)
		w.loop.Post(supervisor.Remark{Service: v.Name, Text: text + below})
	}
	return note
}

// firstTime reports whether text differs from the last message with the given key about the current run of the service. key is
// the kind of message. firstTime then remembers text as the last message.
func (w *memoryWatch) firstTime(v *supervisor.Service, key, text string) bool {
	key, text = v.Name+"/"+key, fmt.Sprint(v.Run, text)
	said := w.lastMessages[key] == text
	w.lastMessages[key] = text
	return !said
}

// amount formats a number of bytes for display.
func amount(n uint64) string {
	if n >= 1<<30 {
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

// Thresholds in percent of the container's memory limit, except for stallPercent. Processes stall while they wait for the kernel
// to find memory (PSI).
const (
	tightAt       = 80   // at this percentage, starts are refused if processes stall or starts were already refused
	refuseAt      = 90   // at this percentage, starts are refused in any case
	stalledShedAt = 90   // at this percentage, a service is ended if processes stall
	shedAt        = 95   // at this percentage, a service is ended in any case
	stallPercent  = 10.0 // processes count as stalling if they wait for memory for this percentage of the time
)

const (
	// pressurePeriod is the time between two measurements of the container's memory while it is tight.
	pressurePeriod = time.Second
	// searchPeriod is the time between two searches for shared memory of services.
	searchPeriod = 10 * time.Second
)

// pressure is the input of decide: how much memory the container has and uses, and the services that may be ended or made to
// wait.
type pressure struct {
	container     proc.ContainerMemory
	startsRefused bool   // starts are being refused
	unowned       uint64 // used memory that belongs to no service
	services      []candidate
}

// candidate is a service that may be ended, or that may be made to wait, to save memory.
type candidate struct {
	name     string
	priority int           // services with a higher priority are ended later
	idle     time.Duration // time since the service last used the processor
	bytes    uint64        // memory of the service; if it is not running, its memory at the last measurement
	hides    string        // why the service may have memory that hinit can't see; "" if it has none
	up, held bool
	ending   bool
}

// decision is the result of decide: the service to end and the service to start.
type decision struct {
	full        bool
	unowned     bool   // most of the used memory belongs to no service, so the end of services that hide none would not help
	shed, admit string // names of the service to end and of the service to start; "" for none
	hides       string // why the service to end may have memory that hinit can't see
}

// decide chooses the service to end and the service to start. It ends one service at a time: the longest
// idle one with the lowest priority (see chooseVictim). If most of the used memory belongs to no service, it ends only a service that
// may hide memory. It starts the most important service whose memory fits.
func decide(p pressure) (d decision) {
	c := p.container
	if c.Limit == 0 {
		return d
	}
	share := float64(c.Used) / float64(c.Limit) * 100
	stalled := c.Stalled >= stallPercent
	d.full = share >= refuseAt || share >= tightAt && (p.startsRefused || stalled)
	d.unowned = d.full && p.unowned > c.Used/2
	ending := slices.ContainsFunc(p.services, func(s candidate) bool { return s.ending })
	if (share >= shedAt || share >= stalledShedAt && stalled) && !ending {
		d.shed, d.hides = chooseVictim(p.services, d.unowned)
	}
	best := -1
	for _, s := range p.services {
		if fits := float64(c.Used+s.bytes) < float64(c.Limit)*tightAt/100; s.held && fits && !d.full && s.priority > best {
			d.admit, best = s.name, s.priority
		}
	}
	return d
}

// chooseVictim returns the idlest running service of the lowest priority, or "" if there is none. The result hides says why that
// service may have memory that hinit can't see. chooseVictim skips services with less than a quarter of the average memory, because
// their end would free very little memory. If hiding is true, it chooses only among services that may hide memory, and skips none of
// these.
func chooseVictim(services []candidate, hiding bool) (name, hides string) {
	all, total := slices.DeleteFunc(slices.Clone(services), func(s candidate) bool { return !s.up || hiding && s.hides == "" }), uint64(0)
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(b.idle, a.idle), cmp.Compare(b.bytes, a.bytes))
	})
	lowest := slices.DeleteFunc(slices.Clone(all), func(s candidate) bool { return s.priority > all[0].priority })
	for _, s := range lowest {
		total += s.bytes
	}
	for _, s := range lowest {
		if hiding || s.bytes*4*uint64(len(lowest)) >= total {
			return s.name, s.hides
		}
	}
	return "", ""
}

// ranks maps priorities to numbers. A service with another priority is never ended or made to wait.
var ranks = map[string]int{config.PriorityLow: 0, config.PriorityNormal: 1, config.PriorityHigh: 2}

// activity is the last measurement of a service. It is kept while memory is tight.
type activity struct {
	cpu   uint64
	since time.Time // when the service last used processor time
	bytes uint64
}

// shedOrAdmit measures the container's memory. If memory is short, it ends a service. If there is room, it starts a service
// that waits for memory. pressed reports whether memory is tight, so that the caller measures more often.
func (w *memoryWatch) shedOrAdmit() (pressed bool) {
	var c proc.ContainerMemory
	blocking.Run(blocking.Short, func() { c = w.container() })
	snapshot := w.loop.Snapshot()
	pressed = c.Limit > 0 && c.Used >= c.Limit/100*tightAt
	p := pressure{container: c, startsRefused: snapshot.HoldReason != ""}
	p.services, p.unowned = w.candidates(snapshot, pressed, c.Used)
	if !pressed && !p.startsRefused && !slices.ContainsFunc(p.services, func(s candidate) bool { return s.held }) {
		clear(w.seen)
		w.found.Store(nil)
		return false
	}
	d, text := decide(p), ""
	if d.full {
		text = fmt.Sprintf("waits for memory: %d %% of %s are used", c.Used*100/c.Limit, amount(c.Limit))
	}
	if d.shed != "" {
		w.loop.Post(supervisor.Hold{Name: d.shed, Reason: "shed, " + d.hides + text + "; starts when there is room, or by: hinit start " + d.shed})
	}
	if d.unowned {
		text += fmt.Sprintf("; %s belong to no service, so none is ended that hinit can examine; %s are memory of the kernel, such as data in sockets; "+
			"%s are shared memory or files in memory, see: df -h -t tmpfs", amount(p.unowned), amount(c.Kernel), amount(c.Shared))
	}
	if d.full != p.startsRefused || text != snapshot.HoldReason && time.Since(w.noticed) >= time.Minute {
		w.noticed = time.Now()
		w.loop.Post(supervisor.HoldStarts{Reason: text})
	}
	if d.admit != "" {
		w.loop.Post(supervisor.Hold{Name: d.admit})
	}
	if (p.unowned > c.Used/4 || len(w.found.all()) > 0) && time.Since(w.searched) >= searchPeriod {
		w.searched = time.Now()
		guard.Go("searching for shared memory", func() {
			found := make(map[uint64]boot.Measurement)
			for _, f := range w.search() {
				found[f.Run] = f
			}
			w.found.Store(&found)
		})
	}
	return pressed
}

// candidates lists all services. A service that may not be ended or made to wait has only its name there. If memory is tight,
// candidates measures the running services, and returns how many of the used bytes belong to none of them.
func (w *memoryWatch) candidates(snapshot *supervisor.Snapshot, pressed bool, used uint64) (list []candidate, unowned uint64) {
	var mains, at []int
	for _, v := range snapshot.Services {
		if v.PID != 0 {
			mains, at = append(mains, v.PID), append(at, len(list))
		}
		s := candidate{name: v.Name}
		if rank, sheds := ranks[units.SettingsOf(w.limits.Load(), v).Priority.Class]; sheds {
			s = candidate{
				name: v.Name, priority: rank, bytes: cmp.Or(w.seen[v.Name].bytes, w.memoryBefore.of(v.Name)), up: v.State == supervisor.Up && v.PID != 0,
				held: v.Held && v.State == supervisor.Waiting, ending: v.State == supervisor.Stopping || v.State == supervisor.Killing,
			}
		}
		list = append(list, s)
	}
	if !pressed {
		return list, 0
	}
	now := time.Now()
	for i, m := range w.measure(mains) {
		s, found := &list[at[i]], w.found.of(snapshot.Services[at[i]].Run)
		seen, known := w.seen[s.name]
		if !known || seen.cpu != m.CPU {
			seen.since = now
		}
		// A process may map a file in memory that it also has open, and a control group counts both.
		seen.cpu, seen.bytes = m.CPU, m.Bytes-min(m.Bytes, m.Extra+m.Shared)+max(m.Shared, found.Bytes)
		w.seen[s.name] = seen
		s.idle, s.bytes, s.hides = now.Sub(seen.since), seen.bytes, found.Note
		used -= min(used, seen.bytes)
	}
	return list, used
}
