package health

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/guard"
	"hinit/internal/proc"
	"hinit/supervisor"
)

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

// decide chooses the service to end and the service to start. It ends one service at a time: of the services with the lowest
// priority, the one that was idle longest. If most of the used memory belongs to no service, it ends only a service that may hide
// memory. It starts the most important service whose memory fits.
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
	if last := w.found.Load(); (p.unowned > c.Used/4 || last != nil && len(*last) > 0) && time.Since(w.searched) >= searchPeriod {
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
		if rank, sheds := ranks[w.settingsOf(v).Priority.Class]; sheds {
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
