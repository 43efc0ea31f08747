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

// fake is a supervisor that records the starts and messages that it gets.
type fake struct {
	mu    sync.Mutex
	begin time.Time
	told  []string
	view  supervisor.Snapshot
}

func newFake() *fake { return &fake{begin: time.Now()} }

func (f *fake) Do(_ context.Context, e supervisor.Event) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := time.Since(f.begin).Round(time.Second)
	switch e := e.(type) {
	case supervisor.Scheduled:
		if e.Now {
			f.told = append(f.told, fmt.Sprintf("%s %v", e.Name, at))
		} else if e.Next.IsZero() {
			f.told = append(f.told, e.Name+" never")
		}
		for _, v := range f.view.Services {
			if v.Name == e.Name {
				v.NextRun = e.Next
			}
		}
	case supervisor.Remark:
		f.told = append(f.told, fmt.Sprintf("%s %v: %s", e.Service, at, e.Text))
	}
	return nil
}

func (f *fake) Snapshot() *supervisor.Snapshot { return &f.view }

// heard returns the starts and messages that the supervisor got since the last call.
func (f *fake) heard() []string {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	told := f.told
	f.told = nil
	return told
}

type memory struct {
	mu   sync.Mutex
	last map[string]time.Time
	err  error
	hang chan struct{}
	n    int
}

func (m *memory) Load() (map[string]time.Time, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last, m.err
}

func (m *memory) Save(last map[string]time.Time) error {
	if m.hang != nil {
		<-m.hang
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last, m.n = last, m.n+1
	return m.err
}

func tasks(schedules map[string]config.Schedule) *config.Config {
	c := reference.Default()
	for name, s := range schedules {
		c.Services[name] = config.Service{Name: name, Enabled: true, Task: config.Task{Schedule: s}}
	}
	return c
}

func cron(text string) config.Schedule {
	return config.Schedule{Cron: text, Timezone: "UTC", OnMissed: config.MissedSkip}
}

// bubble runs a test in virtual time, which begins at midnight UTC.
func bubble(t *testing.T, test func(t *testing.T, ctx context.Context)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		test(t, ctx)
		cancel()
		synctest.Wait()
	})
}

func expect(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}

func TestTasksAreDueAtTheirTimes(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		f := newFake()
		table := New(f, nil, func(err error) { t.Error(err) })
		half := cron("*/30 * * * *")
		half.Jitter = 10 * time.Minute
		table.random = func() float64 { return 0.5 }
		table.Serve(ctx, tasks(map[string]config.Schedule{"hour": cron("0 * * * *"), "half": half}), false)
		expect(t, f.heard())
		time.Sleep(2*time.Hour + time.Minute)
		expect(t, f.heard(), "half 35m0s", "hour 1h0m0s", "half 1h5m0s", "half 1h35m0s", "hour 2h0m0s")

		// A reload applies at once. A schedule that it does not change keeps its time.
		table.Change(tasks(map[string]config.Schedule{"hour": cron("0 * * * *"), "ten": cron("*/10 * * * *")}))
		expect(t, f.heard(), "half never")
		time.Sleep(time.Hour)
		expect(t, f.heard(), "ten 2h10m0s", "ten 2h20m0s", "ten 2h30m0s", "ten 2h40m0s", "ten 2h50m0s", "hour 3h0m0s", "ten 3h0m0s")
		table.Change(tasks(nil))
		expect(t, f.heard(), "hour never", "ten never")
		time.Sleep(time.Hour)
		expect(t, f.heard())
		table.Change(tasks(map[string]config.Schedule{"hour": cron("0 * * * *")}))
		time.Sleep(time.Hour)
		expect(t, f.heard(), "hour 5h0m0s")
	})
}

func TestNothingIsDueWithoutSchedulesOrBeforeTheBoot(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		f := newFake()
		table := New(f, nil, nil)
		table.Change(tasks(map[string]config.Schedule{"hour": cron("0 * * * *")})) // the first Serve comes later
		if table.server != nil {
			t.Error("it serves before it was asked to")
		}
		off := tasks(map[string]config.Schedule{"hour": cron("0 * * * *")})
		s := off.Services["hour"]
		s.Enabled = false
		off.Services["hour"] = s
		table.Serve(ctx, off, false)
		if table.server != nil {
			t.Error("a task that is not enabled costs a goroutine")
		}
		time.Sleep(2 * time.Hour)
		expect(t, f.heard())
	})
}

func TestAnotherImageGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		f := newFake()
		cfg := tasks(map[string]config.Schedule{"hour": cron("0 * * * *")})
		f.view.Services = []*supervisor.Service{{Name: "hour", NextRun: time.Now().Add(-time.Second)}}
		New(f, nil, nil).Serve(ctx, cfg, true) // the scheduled time passed during the re-execution
		expect(t, f.heard(), "hour 0s")
		if got := f.view.Services[0].NextRun.Sub(f.begin); got != time.Hour {
			t.Errorf("next in %v", got)
		}
		f.view.Services[0].NextRun = time.Now().Add(7 * time.Minute) // next start that the old program computed, with its jitter
		New(f, nil, nil).Serve(ctx, cfg, true)
		time.Sleep(10 * time.Minute)
		expect(t, f.heard(), "hour 7m0s")
	})
}

func TestMissedTimes(t *testing.T) {
	nightly := cron("0 3 * * *")
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
			bubble(t, func(t *testing.T, ctx context.Context) {
				f, m := newFake(), &memory{last: map[string]time.Time{}}
				for name, ago := range tt.last {
					m.last[name] = time.Now().Add(-ago)
				}
				New(f, m, func(err error) { t.Error(err) }).Serve(ctx, tasks(map[string]config.Schedule{"t": nightly}), false)
				time.Sleep(4 * time.Hour)
				expect(t, f.heard(), tt.want...)
				if got := m.last["t"].Sub(f.begin); got != 3*time.Hour {
					t.Errorf("remembers %v", got)
				}
			})
		})
	}
}

func TestADiskThatHangsOrFailsHoldsNothingUp(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		hourly := cron("0 * * * *")
		hourly.OnMissed = config.MissedRun
		var warned []error
		f, m := newFake(), &memory{hang: make(chan struct{})}
		table := New(f, m, func(err error) { warned = append(warned, err) })
		table.Serve(ctx, tasks(map[string]config.Schedule{"t": hourly}), false)
		time.Sleep(3*time.Hour + time.Second)
		expect(t, f.heard(), "t 1h0m0s", "t 2h0m0s", "t 3h0m0s")
		if !table.IsSaving() || m.n != 0 {
			t.Errorf("writing %v, %d written", table.IsSaving(), m.n)
		}
		close(m.hang)
		time.Sleep(2 * checkEvery)
		if table.IsSaving() || m.n != 2 || m.last["t"].Sub(f.begin) != 3*time.Hour {
			t.Errorf("writing %v, %d written: %v", table.IsSaving(), m.n, m.last)
		}
		m.mu.Lock()
		m.err = errors.New("no space")
		m.mu.Unlock()
		time.Sleep(time.Hour)
		expect(t, f.heard(), "t 4h0m0s")
		if len(warned) != 1 {
			t.Errorf("warned of %v", warned)
		}
		m.mu.Lock()
		m.last, m.err = nil, nil // the disk has room again
		m.mu.Unlock()
		time.Sleep(2 * checkEvery)
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.last["t"].Sub(f.begin) != 4*time.Hour {
			t.Errorf("with room on the disk again, hinit did not store that a task ran, so the next boot runs it again: %v", m.last)
		}
	})
}

func TestATimeThatPassedLongAgoIsSkippedUnlessAskedFor(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		f := newFake()
		// A start time in the past simulates that the machine was suspended.
		f.view.Services = []*supervisor.Service{{Name: "t", NextRun: time.Now().Add(-time.Hour)}}
		New(f, nil, nil).Serve(ctx, tasks(map[string]config.Schedule{"t": cron("0 3 * * *")}), true)
		expect(t, f.heard(), "t 0s: its time has passed (the clock was set, or nothing ran here), and is skipped")
		time.Sleep(3*time.Hour + time.Second)
		expect(t, f.heard(), "t 3h0m0s")
	})
}
