package health

import (
	"fmt"
	"sync/atomic"
	"time"

	"hinit/internal/boot"
	"hinit/internal/config"
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
	Ended() <-chan struct{}
}

// memoryWatch enforces the memory limits of services: it reports a service that exceeds its limit, or has it restarted. It also
// ends services when the container runs out of memory, see shed.go. It measures services that have a limit and, while memory is
// tight, all services that may be ended. It reports an exceeded limit once, and once more after a re-execution. Its goroutine
// starts with the first limit; a search has its own. Its methods may be called from any goroutine.
type memoryWatch struct {
	loop         memoryLoop
	container    func() proc.ContainerMemory     // returns how much memory the container uses, and its limit
	seen         map[string]activity             // last measurement, by service; kept only while memory is tight
	measure      func(mains []int) []proc.Memory // returns the memory of services, given the PIDs of their main processes
	lastMessages map[string]string               // last message, by service and kind of message, see firstTime
	search       func() []boot.Measurement       // measures the shared memory of services; may take seconds
	found        table[uint64, boot.Measurement] // result of the last search, by the number of the run; kept only while memory is tight
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
	limited := cfg.Agent.Memory.IsSet() || w.container().Limit > 0
	for _, p := range cfg.Profiles.Overrides {
		limited = limited || p.Memory.IsSet()
	}
	for _, s := range cfg.Services {
		limited = limited || s.Memory.IsSet()
	}
	if limited && w.started.CompareAndSwap(false, true) {
		guard.Go("watching memory", w.watch)
	}
}

// settingsOf returns the settings of a gateway or of a service of hinit.yaml, and no settings for other services.
func (w *memoryWatch) settingsOf(v *supervisor.Service) (setup config.ProcessSettings) {
	switch cfg := w.limits.Load(); v.Kind {
	case supervisor.KindGateway:
		setup = cfg.ProfileOf(v.Profile).ProcessSettings
	case supervisor.KindService:
		setup = cfg.Services[v.Name].ProcessSettings
	case supervisor.KindCmd, supervisor.KindHook, supervisor.KindStandIn, supervisor.KindRun, supervisor.KindCheck:
	}
	return setup
}

// table holds values by the name of the service or by the number of its run, such as remarks for the status.
type table[K comparable, V any] struct {
	atomic.Pointer[map[K]V]
}

// of returns the value of a service, or the zero value if there is none.
func (t *table[K, V]) of(service K) (value V) {
	if all := t.Load(); all != nil {
		value = (*all)[service]
	}
	return value
}

func (w *memoryWatch) watch() {
	w.seen, w.lastMessages = make(map[string]activity), make(map[string]string)
	due := time.After(memoryPeriod)
	for looked := time.Now(); ; {
		select {
		case now := <-due:
			if now.Sub(looked) >= memoryPeriod {
				w.measureAll()
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
		if v.State == supervisor.Up && v.PID != 0 && w.settingsOf(v).Memory.IsSet() {
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
	limit, has := w.settingsOf(v).Memory, m.Bytes
	text := "memory: " + amount(has)
	switch {
	case !m.HasOwnCgroup:
		limit = limit.Supervised()
	case m.OOMKills > 0:
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
