// Package timetable starts tasks when their time has come.
//
// It computes the times from the schedules of hinit.yaml and tells the supervisor, which decides whether a time counts. It
// promises that a time is told at most once. Of missed times at most one is made up for, if the schedule asks for that. It owns a
// goroutine while there is a schedule, and another one while it records when tasks ran. Only the second one waits for a disk, and
// the first one before it begins.
package timetable

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"hinit/internal/config"
	"hinit/internal/cronspec"
	"hinit/internal/guard"
	"hinit/supervisor"
)

const (
	// look is how often the clock is looked at while nothing is due: it may have been set.
	look = time.Minute
	// late is how long after its time a task still starts if it skips missed times.
	late = 5 * time.Minute
)

// Loop is what a Table needs of [supervisor.Loop].
type Loop interface {
	Do(ctx context.Context, e supervisor.Event) error
	Snapshot() *supervisor.Snapshot
}

// Memory is where it is written down when tasks ran. Its methods may block on a disk.
type Memory interface {
	Load() (map[string]time.Time, error)
	Save(last map[string]time.Time) error
}

// Table has the times of all tasks. Serve and Change must not be called at the same time.
type Table struct {
	loop   Loop
	memory Memory
	warn   func(error)
	random func() float64 // in [0,1), for the jitter

	ctx     context.Context //nolint:containedctx // of the last Serve
	server  *server         // nil while there is no schedule
	writing atomic.Bool
}

// New returns an empty table. A nil memory forgets everything at the end of the container. warn is told what can't be remembered.
func New(loop Loop, memory Memory, warn func(error)) *Table {
	return &Table{loop: loop, memory: memory, warn: warn, random: rand.Float64}
}

// Writing reports whether something is being written to the disk. It may be called at any time.
func (t *Table) Writing() bool { return t.writing.Load() }

// Serve starts tasks by the schedules of a configuration until ctx ends. The supervisor must know the tasks. resumed says that another
// image of this process has served until now.
func (t *Table) Serve(ctx context.Context, cfg *config.Config, resumed bool) {
	t.ctx, t.server = ctx, nil
	entries := schedulesOf(cfg)
	if len(entries) == 0 {
		return
	}
	s := &server{
		Table: t, ctx: ctx, rows: make(map[string]*row), changes: make(chan map[string]config.Schedule), done: make(chan struct{}),
	}
	t.server = s
	guard.Go("waiting for the times of tasks", func() { s.serve(entries, resumed) })
}

// Change takes the schedules of a new configuration, once there was a Serve.
func (t *Table) Change(cfg *config.Config) {
	switch {
	case t.ctx == nil:
		return
	case t.server == nil:
		t.Serve(t.ctx, cfg, false)
		return
	}
	select {
	case t.server.changes <- schedulesOf(cfg):
	case <-t.server.done:
	}
}

func schedulesOf(cfg *config.Config) map[string]config.Schedule {
	entries := make(map[string]config.Schedule)
	for name, s := range cfg.Services {
		if s.Enabled && s.Task.Schedule.Cron != "" {
			entries[name] = s.Task.Schedule
		}
	}
	return entries
}

// row is one task.
type row struct {
	config.Schedule

	spec cronspec.Spec
	at   time.Time
}

// server is the goroutine of a table.
type server struct {
	*Table

	ctx     context.Context //nolint:containedctx // of the goroutine
	changes chan map[string]config.Schedule
	done    chan struct{}
	rows    map[string]*row
	seen    time.Time            // when the clock was looked at last
	last    map[string]time.Time // when tasks that make up for missed times were told last
	unsaved bool
}

func (s *server) serve(entries map[string]config.Schedule, resumed bool) {
	defer close(s.done)
	s.load(entries)
	s.take(entries, resumed)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(s.turn())
		select {
		case entries := <-s.changes:
			s.take(entries, false)
		case <-timer.C:
		case <-s.ctx.Done():
			return
		}
	}
}

// load reads when tasks ran, if a schedule asks for that.
func (s *server) load(entries map[string]config.Schedule) {
	s.last = make(map[string]time.Time)
	if s.memory == nil || !slices.ContainsFunc(slices.Collect(maps.Values(entries)), makesUp) {
		return
	}
	last, err := s.memory.Load()
	if err != nil {
		s.warn(err)
	}
	maps.Copy(s.last, last)
}

func makesUp(e config.Schedule) bool { return e.Missed == config.MissedRun }

// clock is the time of the wall, which may be set. A schedule is about nothing else.
func clock() time.Time { return time.Now().Round(0) }

// take replaces the schedules by the rows.
func (s *server) take(entries map[string]config.Schedule, resumed bool) {
	now := clock()
	for _, name := range slices.Sorted(maps.Keys(s.rows)) {
		if _, stays := entries[name]; !stays {
			delete(s.rows, name)
			s.tell(supervisor.Due{Name: name})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		e, r := entries[name], s.rows[name]
		if r == nil || r.Schedule != e {
			spec, err := cronspec.Parse(e.Cron, e.Timezone)
			if err != nil { // the zone data has gone since the configuration was read
				s.warn(err)
				continue
			}
			r = &row{Schedule: e, spec: spec}
			r.at = s.after(r, now)
			if s.rows[name] == nil {
				s.begin(name, r, now, resumed)
			}
			s.rows[name] = r
		}
		s.tell(supervisor.Due{Name: name, Next: r.at})
	}
}

// begin sets the first time of a row: the last image's time, or now to make up for a missed one.
func (s *server) begin(name string, r *row, now time.Time, resumed bool) {
	if v := s.loop.Snapshot().Find(name); resumed && v != nil && !v.NextRun.IsZero() {
		r.at = v.NextRun
		return
	}
	if !makesUp(r.Schedule) {
		return
	}
	last, known := s.last[name]
	switch {
	case !known || last.After(now): // it counts from now on
		s.note(name, now)
	case !r.spec.Next(last).After(now):
		r.at = now
	}
}

// after returns the first time of a row after now.
func (s *server) after(r *row, now time.Time) time.Time {
	next := r.spec.Next(now)
	if next.IsZero() || r.Jitter <= 0 {
		return next
	}
	return next.Add(time.Duration(s.random() * float64(r.Jitter)))
}

// turn tells what is due, and returns how long it is until something may be.
func (s *server) turn() time.Duration {
	now := clock()
	back := now.Before(s.seen.Add(-look)) // somebody has set the clock back
	s.seen = now
	wait := look
	for _, name := range slices.Sorted(maps.Keys(s.rows)) {
		r := s.rows[name]
		switch {
		case back:
			r.at = s.after(r, now)
			s.tell(supervisor.Due{Name: name, Next: r.at})
		case !r.at.IsZero() && !now.Before(r.at):
			s.due(name, r, now)
		}
		if !r.at.IsZero() {
			wait = min(wait, max(r.at.Sub(now), 0))
		}
	}
	s.save()
	return wait
}

// due tells that the time of a task has come.
func (s *server) due(name string, r *row, now time.Time) {
	missed := now.Sub(r.at) > late && !makesUp(r.Schedule)
	r.at = s.after(r, now)
	s.tell(supervisor.Due{Name: name, Next: r.at, Now: !missed})
	if missed {
		s.tell(supervisor.Remark{Service: name, Text: "its time has passed while nothing ran here, and is skipped"})
	}
	if makesUp(r.Schedule) {
		s.note(name, now)
	}
}

// tell tells the supervisor, which may have ended.
func (s *server) tell(e supervisor.Event) { _ = s.loop.Do(s.ctx, e) }

func (s *server) note(name string, now time.Time) { s.last[name], s.unsaved = now, true }

// save writes down when tasks ran. While an earlier call waits for the disk, it is left to a later one.
func (s *server) save() {
	if !s.unsaved || s.memory == nil || !s.writing.CompareAndSwap(false, true) {
		return
	}
	s.unsaved = false
	last := maps.Clone(s.last)
	maps.DeleteFunc(last, func(name string, _ time.Time) bool { return s.rows[name] == nil })
	guard.Go("writing down when tasks ran", func() {
		defer s.writing.Store(false)
		if err := s.memory.Save(last); err != nil {
			s.warn(err)
		}
	})
}
