// Package memwatch keeps services within the memory that the configuration allows them, by supervision: it warns, and it has a
// service restarted.
//
// It promises to measure only services that have such a limit, never in the supervisor's loop, and to say once that a limit is
// crossed. It keeps nothing that a re-execution would lose: what was said is in the history. It owns one goroutine, which exists
// from the first limit on.
package memwatch

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/guard"
	"hinit/supervisor"
)

// Period is how often the services are measured.
const Period = 5 * time.Second

// Options are what a Watcher works with.
type Options struct {
	Snapshot func() *supervisor.Snapshot
	History  *supervisor.Ring
	Post     func(supervisor.Event)
	Ended    <-chan struct{}
	Measure  func(mains []int) []uint64 // of the processes of each main process together; called in a turn of internal/blocking
}

// Limits says what a service may have.
type Limits func(v *supervisor.Service) config.Memory

// Watcher watches the memory of services. Set and Note may be called from any goroutine.
type Watcher struct {
	o      Options
	limits atomic.Pointer[Limits]
	notes  atomic.Pointer[map[string]string] // service → what is to be known
	begun  atomic.Bool
}

// New returns a Watcher that watches nothing.
func New(o Options) *Watcher { return &Watcher{o: o} }

// Set gives the limits; any says that there are some.
func (w *Watcher) Set(limits Limits, anyLimit bool) {
	w.limits.Store(&limits)
	if anyLimit && w.begun.CompareAndSwap(false, true) {
		guard.Go("watching memory", w.watch)
	}
}

// Note is what people should know of the memory of a service, "" for nothing.
func (w *Watcher) Note(service string) string {
	if notes := w.notes.Load(); notes != nil {
		return (*notes)[service]
	}
	return ""
}

func (w *Watcher) watch() {
	ticker := time.NewTicker(Period)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			w.look()
		case <-w.o.Ended:
			return
		}
	}
}

// look measures once.
func (w *Watcher) look() {
	var services []*supervisor.Service
	var mains []int
	for _, v := range w.o.Snapshot().Services {
		if v.State == supervisor.Up && v.PID != 0 && (*w.limits.Load())(v).Set() {
			services, mains = append(services, v), append(mains, v.PID)
		}
	}
	notes := make(map[string]string)
	if len(mains) > 0 {
		var bytes []uint64
		_ = blocking.Do(blocking.Short, func() error {
			bytes = w.o.Measure(mains)
			return nil
		})
		for i, v := range services {
			if note := w.weigh(v, bytes[i]); note != "" {
				notes[v.Name] = note
			}
		}
	}
	w.notes.Store(&notes)
}

const (
	above = " is above memory.warn "
	below = " is below memory.warn again"
)

// weigh says what a service's memory leads to, and returns the note for the status.
func (w *Watcher) weigh(v *supervisor.Service, has uint64) (note string) {
	limit := (*w.limits.Load())(v)
	text := "memory: " + amount(has)
	switch {
	case limit.Restart > 0 && has >= uint64(limit.Restart):
		text += " of " + amount(uint64(limit.Restart))
		w.o.Post(supervisor.Unhealthy{Name: v.Name, Run: v.Run, Answer: text})
		return text
	case limit.Warn > 0 && has >= uint64(limit.Warn):
		note = text + above + amount(uint64(limit.Warn))
		if !w.warned(v) {
			w.o.Post(supervisor.Remark{Service: v.Name, Text: note})
		}
	case limit.Warn > 0 && has < uint64(limit.Warn)/10*9 && w.warned(v): // a little less, so that it is not said over and over
		w.o.Post(supervisor.Remark{Service: v.Name, Text: text + below})
	}
	return note
}

// warned reports whether the last that was said of this run's memory is that it is too much.
func (w *Watcher) warned(v *supervisor.Service) bool {
	records, _ := w.o.History.Since(0)
	said := false
	for i := range records {
		r := &records[i]
		if r.Service != v.Name || r.From != "" {
			continue
		}
		switch {
		case r.At.Before(v.Turned), strings.HasSuffix(r.Reason, below):
			said = false
		case strings.HasPrefix(r.Reason, "memory: ") && strings.Contains(r.Reason, above):
			said = true
		}
	}
	return said
}

// amount writes a number of bytes for people.
func amount(n uint64) string {
	if n >= 1<<30 {
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%d MiB", n>>20)
}
