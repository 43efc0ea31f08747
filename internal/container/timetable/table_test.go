package timetable

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"hinit/internal/config"
	"hinit/internal/gendocs/reference"
	"hinit/supervisor"
)

// fakeSupervisor is a supervisor that records the starts and messages that it gets.
type fakeSupervisor struct {
	mu        sync.Mutex
	startedAt time.Time
	messages  []string
	snapshot  supervisor.Snapshot
}

func newFakeSupervisor() *fakeSupervisor { return &fakeSupervisor{startedAt: time.Now()} }

func (f *fakeSupervisor) Do(_ context.Context, e supervisor.Event) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := time.Since(f.startedAt).Round(time.Second)
	switch e := e.(type) {
	case supervisor.Scheduled:
		if e.Now {
			f.messages = append(f.messages, fmt.Sprintf("%s %v", e.Name, at))
		} else if e.Next.IsZero() {
			f.messages = append(f.messages, e.Name+" never")
		}
		for _, v := range f.snapshot.Services {
			if v.Name == e.Name {
				v.NextRun = e.Next
			}
		}
	case supervisor.Remark:
		f.messages = append(f.messages, fmt.Sprintf("%s %v: %s", e.Service, at, e.Text))
	}
	return nil
}

func (f *fakeSupervisor) Snapshot() *supervisor.Snapshot { return &f.snapshot }

// takeMessages returns the starts and messages that the supervisor got since the last call.
func (f *fakeSupervisor) takeMessages() []string {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	messages := f.messages
	f.messages = nil
	return messages
}

type fakeRunStore struct {
	mu   sync.Mutex
	last map[string]time.Time
	err  error
	hang chan struct{}
	n    int
}

func (m *fakeRunStore) Load() (map[string]time.Time, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last, m.err
}

func (m *fakeRunStore) Save(last map[string]time.Time) error {
	if m.hang != nil {
		<-m.hang
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last, m.n = last, m.n+1
	return m.err
}

func tasksConfig(schedules map[string]config.Schedule) *config.Config {
	c := reference.Default()
	for name, s := range schedules {
		c.Services[name] = config.Service{Name: name, Enabled: true, Task: config.Task{Schedule: s}}
	}
	return c
}

func cronSchedule(text string) config.Schedule {
	return config.Schedule{Cron: text, Timezone: "UTC", OnMissed: config.MissedSkip}
}

// inVirtualTime runs a test in virtual time, which begins at midnight UTC.
func inVirtualTime(t *testing.T, test func(t *testing.T, ctx context.Context)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		test(t, ctx)
		cancel()
		synctest.Wait()
	})
}

func checkEqual(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}

func TestTasksAreDueAtTheirTimes(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, ctx context.Context) {
		f := newFakeSupervisor()
		table := New(f, nil, func(err error) { t.Error(err) })
		half := cronSchedule("*/30 * * * *")
		half.Jitter = 10 * time.Minute
		table.random = func() float64 { return 0.5 }
		table.Serve(ctx, tasksConfig(map[string]config.Schedule{"hour": cronSchedule("0 * * * *"), "half": half}), false)
		checkEqual(t, f.takeMessages())
		time.Sleep(2*time.Hour + time.Minute)
		checkEqual(t, f.takeMessages(), "half 35m0s", "hour 1h0m0s", "half 1h5m0s", "half 1h35m0s", "hour 2h0m0s")

		// A reload applies at once. A schedule that it does not change keeps its time.
		table.SetConfig(tasksConfig(map[string]config.Schedule{"hour": cronSchedule("0 * * * *"), "ten": cronSchedule("*/10 * * * *")}))
		checkEqual(t, f.takeMessages(), "half never")
		time.Sleep(time.Hour)
		checkEqual(t, f.takeMessages(), "ten 2h10m0s", "ten 2h20m0s", "ten 2h30m0s", "ten 2h40m0s", "ten 2h50m0s", "hour 3h0m0s", "ten 3h0m0s")
		table.SetConfig(tasksConfig(nil))
		checkEqual(t, f.takeMessages(), "hour never", "ten never")
		time.Sleep(time.Hour)
		checkEqual(t, f.takeMessages())
		table.SetConfig(tasksConfig(map[string]config.Schedule{"hour": cronSchedule("0 * * * *")}))
		time.Sleep(time.Hour)
		checkEqual(t, f.takeMessages(), "hour 5h0m0s")
	})
}

func TestNothingIsDueWithoutSchedulesOrBeforeTheBoot(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, ctx context.Context) {
		f := newFakeSupervisor()
		table := New(f, nil, nil)
		table.SetConfig(tasksConfig(map[string]config.Schedule{"hour": cronSchedule("0 * * * *")})) // the first Serve comes later
		if table.scheduler != nil {
			t.Error("it serves before it was asked to")
		}
		off := tasksConfig(map[string]config.Schedule{"hour": cronSchedule("0 * * * *")})
		s := off.Services["hour"]
		s.Enabled = false
		off.Services["hour"] = s
		table.Serve(ctx, off, false)
		if table.scheduler != nil {
			t.Error("a task that is not enabled costs a goroutine")
		}
		time.Sleep(2 * time.Hour)
		checkEqual(t, f.takeMessages())
	})
}

func TestAnotherImageGoesOn(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, ctx context.Context) {
		f := newFakeSupervisor()
		cfg := tasksConfig(map[string]config.Schedule{"hour": cronSchedule("0 * * * *")})
		f.snapshot.Services = []*supervisor.Service{{Name: "hour", NextRun: time.Now().Add(-time.Second)}}
		New(f, nil, nil).Serve(ctx, cfg, true) // the scheduled time passed during the re-execution
		checkEqual(t, f.takeMessages(), "hour 0s")
		if got := f.snapshot.Services[0].NextRun.Sub(f.startedAt); got != time.Hour {
			t.Errorf("next in %v", got)
		}
		f.snapshot.Services[0].NextRun = time.Now().Add(7 * time.Minute) // next start that the old program computed, with its jitter
		New(f, nil, nil).Serve(ctx, cfg, true)
		time.Sleep(10 * time.Minute)
		checkEqual(t, f.takeMessages(), "hour 7m0s")
	})
}

func TestMissedTimes(t *testing.T) {
	nightly := cronSchedule("0 3 * * *")
	nightly.OnMissed = config.MissedRun
	for _, tt := range []struct {
		name string
		last map[string]time.Duration // time from the last run to the start of the test
		want []string
	}{
		{"never seen", nil, []string{"t 3h0m0s"}},
		{"missed three", map[string]time.Duration{"t": 72 * time.Hour}, []string{"t 0s", "t 3h0m0s"}},
		{"missed none", map[string]time.Duration{"t": 20 * time.Hour}, []string{"t 3h0m0s"}},
		{"forged, of the year 1", map[string]time.Duration{"t": math.MaxInt64}, []string{"t 0s", "t 3h0m0s"}},
		{"from the future", map[string]time.Duration{"t": -100 * time.Hour}, []string{"t 3h0m0s"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, ctx context.Context) {
				f, m := newFakeSupervisor(), &fakeRunStore{last: map[string]time.Time{}}
				for name, ago := range tt.last {
					m.last[name] = time.Now().Add(-ago)
				}
				New(f, m, func(err error) { t.Error(err) }).Serve(ctx, tasksConfig(map[string]config.Schedule{"t": nightly}), false)
				time.Sleep(4 * time.Hour)
				checkEqual(t, f.takeMessages(), tt.want...)
				if got := m.last["t"].Sub(f.startedAt); got != 3*time.Hour {
					t.Errorf("remembers %v", got)
				}
			})
		})
	}
}

func TestADiskThatHangsOrFailsHoldsNothingUp(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, ctx context.Context) {
		hourly := cronSchedule("0 * * * *")
		hourly.OnMissed = config.MissedRun
		var warned []error
		f, m := newFakeSupervisor(), &fakeRunStore{hang: make(chan struct{})}
		table := New(f, m, func(err error) { warned = append(warned, err) })
		table.Serve(ctx, tasksConfig(map[string]config.Schedule{"t": hourly}), false)
		time.Sleep(3*time.Hour + time.Second)
		checkEqual(t, f.takeMessages(), "t 1h0m0s", "t 2h0m0s", "t 3h0m0s")
		if !table.IsSaving() || m.n != 0 {
			t.Errorf("writing %v, %d written", table.IsSaving(), m.n)
		}
		close(m.hang)
		time.Sleep(2 * clockCheckInterval)
		if table.IsSaving() || m.n != 2 || m.last["t"].Sub(f.startedAt) != 3*time.Hour {
			t.Errorf("writing %v, %d written: %v", table.IsSaving(), m.n, m.last)
		}
		m.mu.Lock()
		m.err = errors.New("no space")
		m.mu.Unlock()
		time.Sleep(time.Hour)
		checkEqual(t, f.takeMessages(), "t 4h0m0s")
		if len(warned) != 1 {
			t.Errorf("warned of %v", warned)
		}
		m.mu.Lock()
		m.last, m.err = nil, nil // the disk has room again
		m.mu.Unlock()
		time.Sleep(2 * clockCheckInterval)
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.last["t"].Sub(f.startedAt) != 4*time.Hour {
			t.Errorf("with room on the disk again, hinit did not store that a task ran, so the next boot runs it again: %v", m.last)
		}
	})
}

func TestATimeThatPassedLongAgoIsSkippedUnlessAskedFor(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, ctx context.Context) {
		f := newFakeSupervisor()
		// A start time in the past simulates that the machine was suspended.
		f.snapshot.Services = []*supervisor.Service{{Name: "t", NextRun: time.Now().Add(-time.Hour)}}
		New(f, nil, nil).Serve(ctx, tasksConfig(map[string]config.Schedule{"t": cronSchedule("0 3 * * *")}), true)
		checkEqual(t, f.takeMessages(), "t 0s: its time has passed (the clock was set, or nothing ran here), and is skipped")
		time.Sleep(3*time.Hour + time.Second)
		checkEqual(t, f.takeMessages(), "t 3h0m0s")
	})
}
