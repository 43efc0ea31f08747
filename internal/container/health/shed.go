package health

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/proc"
	"hinit/supervisor"
)

// Which parts of the container's limit do what, in percent. Processes stall while they wait for the kernel to find memory (PSI).
const (
	tight     = 80 // above this, starts are refused while processes stall, and go on being refused
	refuse    = 90
	shedStall = 90 // above this, a service is ended while processes stall
	shedAt    = 95
	stalls    = 10.0 // this part of the time, in percent, counts as a stall
)

// pressurePeriod is how often the container's memory is read when it is tight.
const pressurePeriod = time.Second

// pressure is what is known of the container's memory, and of the services that may be ended for it.
type pressure struct {
	container proc.ContainerMemory
	full      bool // starts are refused
	services  []candidate
}

// candidate is a service that may wait for memory.
type candidate struct {
	name     string
	priority int           // higher ones stay longer
	idle     time.Duration // since it last used the processor
	bytes    uint64        // what it has, or had last
	up, held bool
	ending   bool
}

// decision is what follows from it.
type decision struct {
	full        bool
	shed, admit string // a service, "" for none
}

// decide is the whole policy. It ends one service at a time, the idlest of the lowest priority, and starts the most important one that fits.
func decide(p pressure) (d decision) {
	c := p.container
	if c.Limit == 0 {
		return d
	}
	share := float64(c.Used) / float64(c.Limit) * 100
	stalled := c.Stalled >= stalls
	d.full = share >= refuse || share >= tight && (p.full || stalled)
	ending := slices.ContainsFunc(p.services, func(s candidate) bool { return s.ending })
	if (share >= shedAt || share >= shedStall && stalled) && !ending {
		d.shed = victim(p.services)
	}
	best := -1
	for _, s := range p.services {
		if fits := float64(c.Used+s.bytes) < float64(c.Limit)*tight/100; s.held && fits && !d.full && s.priority > best {
			d.admit, best = s.name, s.priority
		}
	}
	return d
}

// victim is the idlest service of the lowest priority that any running one has, "" for none. The end of one with less than a quarter of the
// average would free next to nothing.
func victim(services []candidate) string {
	var lowest []candidate
	total := uint64(0)
	for _, s := range services {
		switch {
		case !s.up || len(lowest) > 0 && s.priority > lowest[0].priority:
			continue
		case len(lowest) > 0 && s.priority < lowest[0].priority:
			lowest, total = lowest[:0], 0
		}
		lowest, total = append(lowest, s), total+s.bytes
	}
	worth := slices.DeleteFunc(slices.Clone(lowest), func(s candidate) bool { return s.bytes*4*uint64(len(lowest)) < total })
	if len(worth) == 0 {
		return ""
	}
	return slices.MinFunc(worth, func(a, b candidate) int { return cmp.Or(cmp.Compare(b.idle, a.idle), cmp.Compare(b.bytes, a.bytes)) }).name
}

// ranks are the priorities that may be shed, by their words.
var ranks = map[string]int{config.PriorityLow: 0, config.PriorityNormal: 1, config.PriorityHigh: 2}

// activity is what was last seen of a service while memory was tight.
type activity struct {
	cpu   uint64
	since time.Time // it has used no processor time since
	bytes uint64
}

// relieve looks at the container's memory, and acts. It reports whether memory is tight.
func (w *memoryWatch) relieve() (pressed bool) {
	var c proc.ContainerMemory
	_ = blocking.Do(blocking.Short, func() error {
		c = w.container()
		return nil
	})
	snapshot := w.loop.Snapshot()
	pressed = c.Limit > 0 && c.Used >= c.Limit/100*tight
	p := pressure{container: c, full: snapshot.Full != "", services: w.candidates(snapshot, pressed)}
	if !pressed && !p.full && !slices.ContainsFunc(p.services, func(s candidate) bool { return s.held }) {
		clear(w.seen)
		return false
	}
	d, text := decide(p), ""
	if d.full {
		text = fmt.Sprintf("waits for memory: %d %% of %s are used", c.Used*100/c.Limit, amount(c.Limit))
	}
	if d.full != p.full {
		w.loop.Post(supervisor.Full{Reason: text})
	}
	if d.shed != "" {
		w.loop.Post(supervisor.Hold{Name: d.shed, Reason: "shed, " + text + "; starts when there is room, or by: hinit start " + d.shed})
	}
	if d.admit != "" {
		w.loop.Post(supervisor.Hold{Name: d.admit})
	}
	return pressed
}

// candidates lists the services that may wait for memory. It measures those that run if memory is tight.
func (w *memoryWatch) candidates(snapshot *supervisor.Snapshot, pressed bool) (list []candidate) {
	var mains, at []int
	for _, v := range snapshot.Services {
		rank, sheds := ranks[w.setup(v).Priority.Class]
		if !sheds {
			continue
		}
		up := v.State == supervisor.Up && v.PID != 0
		if up {
			mains, at = append(mains, v.PID), append(at, len(list))
		}
		list = append(list, candidate{
			name: v.Name, priority: rank, bytes: w.seen[v.Name].bytes, up: up, held: v.Held && v.State == supervisor.Waiting,
			ending: v.State == supervisor.Stopping || v.State == supervisor.Killing,
		})
	}
	if !pressed || len(mains) == 0 {
		return list
	}
	var memory []proc.Memory
	_ = blocking.Do(blocking.Short, func() error {
		memory = w.measure(mains)
		return nil
	})
	now := time.Now()
	for i, m := range memory {
		s := &list[at[i]]
		seen, known := w.seen[s.name]
		if !known || seen.cpu != m.CPU {
			seen.since = now
		}
		seen.cpu, seen.bytes = m.CPU, m.Bytes
		w.seen[s.name] = seen
		s.idle, s.bytes = now.Sub(seen.since), m.Bytes
	}
	return list
}
