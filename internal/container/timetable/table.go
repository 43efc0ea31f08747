// Package timetable starts tasks by the schedules of hinit.yaml.
//
// The package computes the times, and tells the supervisor about each time at most once. The supervisor decides whether the
// task starts. If a schedule makes up for missed times, a single start makes up for all of them.
//
// The package owns a goroutine while there is a schedule. It waits for the disk only once, before its first task. A second
// goroutine stores on the disk when tasks ran.
package timetable

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/cronspec"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/supervisor"
)

const (
	// clockCheckInterval is how often the clock is read while no task is due, because an operator may set the clock.
	clockCheckInterval = time.Minute
	// maxStartDelay is how late a task may start if its schedule does not make up for missed times.
	maxStartDelay = 5 * time.Minute
)

// Loop is the part of [supervisor.Loop] that a Timetable uses.
type Loop interface {
	Do(ctx context.Context, e supervisor.Event) error
	Snapshot() *supervisor.Snapshot
}

// RunStore stores when tasks ran. Its methods may block on a disk.
type RunStore interface {
	Load() (map[string]time.Time, error)
	Save(last map[string]time.Time) error
}

// Timetable starts the tasks of a configuration by their schedules. Do not call Serve and SetConfig at the same time.
type Timetable struct {
	loop   Loop
	store  RunStore
	warn   func(error)
	random func() float64 // function that returns a number in [0,1), for the jitter

	ctx       context.Context //nolint:containedctx // context of the last Serve; nil before
	scheduler *scheduler      // goroutine that serves the schedules; nil while there is no schedule
	saving    atomic.Bool
}

// New returns an empty table. memory stores when tasks ran; if it is nil, the start times are lost when the container ends.
// warn gets errors of memory.
func New(loop Loop, memory RunStore, warn func(error)) *Timetable {
	return &Timetable{loop: loop, store: memory, warn: warn, random: rand.Float64}
}

// IsSaving reports whether the package is writing the start times of tasks to the disk. Any goroutine may call it.
func (t *Timetable) IsSaving() bool { return t.saving.Load() }

// Serve starts tasks by their schedules, in a goroutine, until ctx ends. The supervisor must already know the tasks. resumed
// means that the program before a re-execution has served the schedules until now.
func (t *Timetable) Serve(ctx context.Context, cfg *config.Config, resumed bool) {
	t.ctx, t.scheduler = ctx, nil
	entries := schedulesOf(cfg)
	if len(entries) == 0 {
		return
	}
	s := &scheduler{Timetable: t, ctx: ctx, tasks: make(map[string]*taskSchedule), changes: make(chan map[string]config.Schedule), done: make(chan struct{})}
	t.scheduler = s
	guard.Go("waiting for the times of tasks", func() { s.serve(entries, resumed) })
}

// SetConfig replaces the schedules after a reload. It does nothing before Serve.
func (t *Timetable) SetConfig(cfg *config.Config) {
	switch {
	case t.ctx == nil:
		return
	case t.scheduler == nil:
		t.Serve(t.ctx, cfg, false)
		return
	}
	select {
	case t.scheduler.changes <- schedulesOf(cfg):
	case <-t.scheduler.done:
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

// taskSchedule is the schedule of one task, with its next start.
type taskSchedule struct {
	config.Schedule

	spec      cronspec.Spec
	nextStart time.Time
}

// scheduler is the state of the goroutine that serves a Timetable.
type scheduler struct {
	*Timetable

	ctx            context.Context //nolint:containedctx // context of the goroutine
	changes        chan map[string]config.Schedule
	done           chan struct{}
	tasks          map[string]*taskSchedule
	clockCheckedAt time.Time            // when the clock was last read
	lastStart      map[string]time.Time // last start of each task that makes up for missed times
	unsaved        bool
	saveFailed     atomic.Bool // the last attempt to store last has failed
}

func (s *scheduler) serve(entries map[string]config.Schedule, resumed bool) {
	defer close(s.done)
	s.load(entries)
	s.setSchedules(entries, resumed)
	for {
		due := time.After(s.startDue())
		select {
		case entries := <-s.changes:
			s.setSchedules(entries, false)
		case <-due:
		case <-s.ctx.Done():
			return
		}
	}
}

// load reads the last starts of tasks from the RunStore, if a schedule makes up for missed times.
func (s *scheduler) load(entries map[string]config.Schedule) {
	s.lastStart = make(map[string]time.Time)
	if s.store == nil || !slices.ContainsFunc(slices.Collect(maps.Values(entries)), runsMissedTime) {
		return
	}
	last, err := s.store.Load()
	if err != nil {
		s.warn(err)
	}
	maps.Copy(s.lastStart, last)
}

func runsMissedTime(e config.Schedule) bool { return e.OnMissed == config.MissedRun }

// wallClock returns the time without a monotonic reading, because schedules follow the wall clock even if an operator sets
// it.
func wallClock() time.Time { return time.Now().Round(0) }

// setSchedules makes entries the present schedules, and tells the supervisor when each task starts next.
func (s *scheduler) setSchedules(entries map[string]config.Schedule, resumed bool) {
	now := wallClock()
	for _, name := range slices.Sorted(maps.Keys(s.tasks)) {
		if _, stays := entries[name]; !stays {
			delete(s.tasks, name)
			s.send(supervisor.Scheduled{Name: name})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		e, r := entries[name], s.tasks[name]
		if r == nil || r.Schedule != e {
			spec, err := cronspec.Parse(e.Cron, e.Timezone)
			if err != nil { // the time zone data was removed after the configuration was read
				s.warn(err)
				continue
			}
			r = &taskSchedule{Schedule: e, spec: spec}
			r.nextStart = s.nextTime(r, now)
			if s.tasks[name] == nil {
				s.setFirstTime(name, r, now, resumed)
			}
			s.tasks[name] = r
		}
		s.send(supervisor.Scheduled{Name: name, Next: r.nextStart})
	}
}

// setFirstTime sets the next start of a task that is new in the table. After a re-execution the supervisor knows this time
// already. If the schedule makes up for missed times and has missed one, the task starts now.
func (s *scheduler) setFirstTime(name string, r *taskSchedule, now time.Time, resumed bool) {
	if v := s.loop.Snapshot().Find(name); resumed && v != nil && !v.NextRun.IsZero() {
		r.nextStart = v.NextRun
		return
	}
	if !runsMissedTime(r.Schedule) {
		return
	}
	last, known := s.lastStart[name]
	switch {
	case !known || last.After(now): // the last run is unknown, or in the future: count from now on
		s.recordStart(name, now)
	case !r.spec.Next(last).After(now):
		r.nextStart = now
	}
}

// nextTime returns the first scheduled time after now, plus a random delay of up to the jitter.
func (s *scheduler) nextTime(r *taskSchedule, now time.Time) time.Time {
	next := r.spec.Next(now)
	if next.IsZero() || r.Jitter <= 0 {
		return next
	}
	return next.Add(time.Duration(s.random() * float64(r.Jitter)))
}

// startDue starts the tasks that are due. It returns how long to wait before the next call.
func (s *scheduler) startDue() time.Duration {
	now := wallClock()
	back := now.Before(s.clockCheckedAt.Add(-clockCheckInterval)) // the clock was set back
	s.clockCheckedAt = now
	wait := clockCheckInterval
	for _, name := range slices.Sorted(maps.Keys(s.tasks)) {
		r := s.tasks[name]
		switch {
		case back:
			r.nextStart = s.nextTime(r, now)
			s.send(supervisor.Scheduled{Name: name, Next: r.nextStart})
		case !r.nextStart.IsZero() && !now.Before(r.nextStart):
			s.startTask(name, r, now)
		}
		if !r.nextStart.IsZero() {
			wait = min(wait, max(r.nextStart.Sub(now), 0))
		}
	}
	s.save()
	return wait
}

// startTask starts a task that is due, or skips it if it is much too late.
func (s *scheduler) startTask(name string, r *taskSchedule, now time.Time) {
	missed := now.Sub(r.nextStart) > maxStartDelay && !runsMissedTime(r.Schedule)
	r.nextStart = s.nextTime(r, now)
	s.send(supervisor.Scheduled{Name: name, Next: r.nextStart, Now: !missed})
	if missed {
		s.send(supervisor.Remark{Service: name, Text: "its time has passed (the clock was set, or nothing ran here), and is skipped"})
	}
	if runsMissedTime(r.Schedule) {
		s.recordStart(name, now)
	}
}

// send sends an event to the supervisor. An error means only that the supervisor has ended.
func (s *scheduler) send(e supervisor.Event) { _ = s.loop.Do(s.ctx, e) }

func (s *scheduler) recordStart(name string, t time.Time) { s.lastStart[name], s.unsaved = t, true }

// save stores when tasks ran, in a goroutine. While the goroutine of an earlier call waits for the disk, save does nothing;
// a later call stores these times too. After an error, the next call tries again.
func (s *scheduler) save() {
	if !s.unsaved && !s.saveFailed.Load() || s.store == nil || !s.saving.CompareAndSwap(false, true) {
		return
	}
	s.unsaved = false
	last := maps.Clone(s.lastStart)
	maps.DeleteFunc(last, func(name string, _ time.Time) bool { return s.tasks[name] == nil })
	guard.Go("writing down when tasks ran", func() {
		defer s.saving.Store(false)
		err := s.store.Save(last)
		if err != nil && !s.saveFailed.Load() {
			s.warn(err)
		}
		s.saveFailed.Store(err != nil)
	})
}

// scheduleFile stores the last starts of tasks that make up for missed times. It belongs to the agent, who may delete it.
const (
	scheduleFile = ".hinit-schedule.json"
	maxSchedule  = 1 << 20
)

// LastRuns is a [RunStore] in a file of the data directory, which it reads and writes as the user Actor.
type LastRuns struct {
	Home  string
	Actor *fsutil.Actor
}

type lastRunsFile struct {
	Version int                  `json:"version"`
	Last    map[string]time.Time `json:"last"`
}

func (l LastRuns) withFile(do func(d *fsutil.Dir, name string) ([]byte, error)) ([]byte, error) {
	return fsutil.WithParentDir(filepath.Join(l.Home, scheduleFile), l.Actor.WithPool(blocking.Volume), do)
}

// Load returns when each task was last started; nothing if there is no file.
func (l LastRuns) Load() (map[string]time.Time, error) {
	var f lastRunsFile
	data, err := l.withFile(func(d *fsutil.Dir, name string) ([]byte, error) { return d.ReadFile(name, maxSchedule) })
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err == nil:
		err = json.Unmarshal(data, &f)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot tell which tasks have missed their time: %w; if the file is damaged, delete %s in the data directory", err, scheduleFile)
	}
	return f.Last, nil
}

// Save writes when each task was last started.
func (l LastRuns) Save(last map[string]time.Time) error {
	data, err := json.Marshal(lastRunsFile{1, last})
	if err == nil {
		_, err = l.withFile(func(d *fsutil.Dir, name string) ([]byte, error) {
			return nil, d.Replace(name, append(data, '\n'), fsutil.ReplaceOptions{Mode: 0o600})
		})
	}
	if err != nil {
		return fmt.Errorf("cannot write down when tasks ran, so a missed time may go unseen: %w", err)
	}
	return nil
}
