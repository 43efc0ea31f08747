package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var errFake = errors.New("the engine says no")

// TestLabels checks the labels of a container (contract, 19.4).
func TestLabels(t *testing.T) {
	t.Run("sanitiser", func(t *testing.T) {
		for in, out := range map[string]string{
			"plain-name_1.0": "plain-name_1.0", "with/slash": "with_slash", "with:colon": "with_colon", "emoji-😀-here": "emoji-_-here",
			strings.Repeat("x", 100): strings.Repeat("x", 63), "": "unknown", "task/with:weird*chars": "task_with_weird_chars", "a\xffb": "a_b",
		} {
			if got := Sanitise(in); got != out {
				t.Errorf("%q becomes %q, want %q", in, got, out)
			}
		}
	})
	f := newFake()
	m := fakeManager(t, f, func(o *Options) { o.Profile = "coder" })
	s := mustOpen(t, m, Key{Task: "task/with:weird*chars"})
	for name, value := range map[string]string{LabelAgent: "1", LabelTask: "task_with_weird_chars", LabelProfile: "coder"} {
		if got := f.specs[0].Labels[name]; got != value {
			t.Errorf("label %s is %q on the run, want %q", name, got, value)
		}
		if got := s.Labels()[name]; got != value || len(s.Labels()) != 3 {
			t.Errorf("label %s is %q on the handle, want %q", name, got, value)
		}
	}
}

// TestReuse checks which existing container a new sandbox uses (contract, 19.5).
func TestReuse(t *testing.T) {
	for name, c := range map[string]struct {
		have                     []Container
		fail                     string
		id                       string
		list, start, un, creates int
	}{
		"running match":                  {[]Container{{ID: "a", State: Running}}, "", "a", 1, 0, 0, 0},
		"exited match":                   {[]Container{{ID: "a", State: Exited}}, "", "a", 1, 1, 0, 0},
		"created match":                  {[]Container{{ID: "a", State: Created}}, "", "a", 1, 1, 0, 0},
		"paused match":                   {[]Container{{ID: "a", State: Paused}}, "", "a", 1, 0, 0, 0},
		"dead match":                     {[]Container{{ID: "a", State: Dead}}, "", "new1", 1, 1, 0, 1},
		"start fails":                    {[]Container{{ID: "a", State: Exited}}, "start a", "new1", 1, 2, 0, 1},
		"two matches, stopped one first": {[]Container{{ID: "a", State: Exited}, {ID: "b", State: Running}}, "", "b", 1, 0, 0, 0},
		"another task":                   {[]Container{{ID: "a", State: Running, Labels: AgentLabels(Key{Task: "x"})}}, "", "new1", 1, 1, 0, 1},
		"another profile":                {[]Container{{ID: "a", State: Running, Labels: AgentLabels(Key{Profile: "x"})}}, "", "new1", 1, 1, 0, 1},
		"the engine's list fails":        {[]Container{{ID: "a", State: Running}}, "list", "new1", 1, 1, 0, 1},
		"nothing":                        {nil, "", "new1", 1, 1, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(c.have...)
			if c.fail != "" {
				f.failures[c.fail] = errFake
			}
			s := mustOpen(t, fakeManager(t, f, nil), Key{})
			if s.ID() != c.id {
				t.Errorf("it uses %s, want %s", s.ID(), c.id)
			}
			f.wantCalls(t, "list", c.list)
			f.wantCalls(t, "start", c.start)
			f.wantCalls(t, "unpause", c.un)
			f.wantCalls(t, "create", c.creates)
		})
	}
	t.Run("another volume's is left alone", func(t *testing.T) {
		labels := AgentLabels(Key{})
		labels[LabelVolume] = "somebody else"
		f := newFake(Container{ID: "a", State: Running, Labels: labels})
		if s := mustOpen(t, fakeManager(t, f, nil), Key{}); s.ID() != "new1" {
			t.Errorf("it uses %s", s.ID())
		}
	})
	t.Run("concurrent first calls make one", func(t *testing.T) {
		f := newFake()
		dir := t.TempDir()
		managers := []*Manager{fakeManager(t, f, func(o *Options) { o.Dir = dir }), fakeManager(t, f, func(o *Options) { o.Dir = dir })}
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				if _, err := managers[i%2].Open(t.Context(), Key{}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		f.wantCalls(t, "create", 1)
	})
	t.Run("an engine that doesn't answer", func(t *testing.T) {
		f := newFake()
		f.failures["list"] = fmt.Errorf("cannot list: %w", ErrNoEngine)
		if _, err := fakeManager(t, f, nil).Open(t.Context(), Key{}); !errors.Is(err, ErrNoEngine) {
			t.Error(err)
		}
		f.wantCalls(t, "create", 0)
	})
}

// TestFailedRunLeavesNothing checks that a failed run leaves no container (contract, 19.2).
func TestFailedRunLeavesNothing(t *testing.T) {
	for _, at := range []string{"create", "start"} {
		t.Run(at, func(t *testing.T) {
			f := newFake()
			f.failures[at] = errFake
			m := fakeManager(t, f, nil)
			if _, err := m.Open(t.Context(), Key{}); !errors.Is(err, errFake) {
				t.Errorf("the error is %v", err)
			}
			removed := f.callsOf("remove")
			if at == "start" && fmt.Sprint(removed) != "[remove new1]" || len(f.containers) != 0 {
				t.Errorf("removed: %q; left: %d", removed, len(f.containers))
			}
			if entries, _ := os.ReadDir(m.opts.State + "/" + runDir); len(entries) != 0 {
				t.Errorf("%d directories are left", len(entries))
			}
		})
	}
	t.Run("a container that the engine made before its error", func(t *testing.T) {
		m, name := managerWithContainer(t, Created)
		if _, err := m.MakeContainer(t.Context(), Spec{Name: name}); !errors.Is(err, errFake) {
			t.Errorf("the error is %v", err)
		}
		m.engine.(*fakeEngine).wantCalls(t, "remove", 1)
	})
	t.Run("an image that isn't there is fetched", func(t *testing.T) {
		f := newFake()
		f.failures["create"] = ErrNoImage
		_, err := fakeManager(t, f, nil).Open(t.Context(), Key{})
		f.wantCalls(t, "pull", 1)
		f.wantCalls(t, "create", 2)
		if !errors.Is(err, ErrNoImage) {
			t.Error(err)
		}
	})
}

// managerWithContainer returns a manager and the name of an existing container. The engine fails each
// list and each creation.
func managerWithContainer(t *testing.T, state State) (m *Manager, name string) {
	f := newFake(Container{ID: "old", State: state})
	m = fakeManager(t, f, nil)
	name = m.containerName(AgentLabels(Key{}))
	f.containers[0].Name, f.failures["list"], f.failures["create"] = name, errFake, errFake
	return m, name
}

// TestASandboxWasRemovedBecauseAnotherCouldNotBeMade checks that a running sandbox survives an
// engine that fails for a moment, for example because its disk is full.
func TestASandboxWasRemovedBecauseAnotherCouldNotBeMade(t *testing.T) {
	for _, state := range []State{Running, Exited, Paused} {
		m, name := managerWithContainer(t, state)
		if _, err := m.Open(t.Context(), Key{}); !errors.Is(err, errFake) {
			t.Errorf("the error is %v", err)
		}
		if _, err := m.MakeContainer(t.Context(), Spec{Name: name}); !errors.Is(err, errFake) { // docker run --name creates a sandbox with this call.
			t.Errorf("the error is %v", err)
		}
		m.engine.(*fakeEngine).wantCalls(t, "remove", 0)
	}
}

// TestClose checks that closing a manager leaves its containers running.
func TestClose(t *testing.T) {
	f := newFake()
	m := fakeManager(t, f, nil)
	s := mustOpen(t, m, Key{})
	if _, err := s.Exec(t.Context(), Request{Command: "true"}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(m.Close(), m.Close()); err != nil {
		t.Fatal(err)
	}
	f.wantCalls(t, "stop", 0)
	f.wantCalls(t, "remove", 0)
	if _, err := s.Exec(t.Context(), Request{Command: "true"}); !errors.Is(err, ErrClosed) {
		t.Errorf("a command afterwards: %v", err)
	}
	if _, err := m.Open(t.Context(), Key{}); !errors.Is(err, ErrClosed) {
		t.Errorf("the next one: %v", err)
	}
}

// TestAdopt checks that adopting a container again opens no second connection and starts no second
// helper.
func TestAdopt(t *testing.T) {
	f := newFake(Container{ID: "0123456789abcdef", Name: "box", State: Running}, Container{ID: "b", State: Paused})
	m := fakeManager(t, f, nil)
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			s, err := m.Adopt(t.Context(), []string{"box", "0123456789abcdef"}[i%2])
			if err == nil {
				_, err = s.Exec(t.Context(), Request{Argv: []string{"true"}})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	f.wantCalls(t, "exec", 1)
	if _, err := m.Adopt(t.Context(), "b"); err == nil || !strings.Contains(err.Error(), "is paused") {
		t.Error(err)
	}
	first, _ := m.Adopt(t.Context(), "box")
	exit, err := first.beginCommand()
	if err != nil {
		t.Fatal(err)
	}
	m.ForgetAdopted("box")
	if !first.link.alive() {
		t.Error("a command that runs is cut off")
	}
	exit()
	if first.link.alive() {
		t.Error("the connection is left behind")
	}
	if second, err := m.Adopt(t.Context(), "0123456789abcdef"); err != nil || second == first {
		t.Error("it is remembered all the same", err)
	}
}

// TestAContainerInUse checks that LastUse distinguishes a container in use from an unused one.
func TestAContainerInUse(t *testing.T) {
	f := newFake()
	m := fakeManager(t, f, nil)
	s := mustOpen(t, m, Key{})
	f.runCommand = func(c *Container, _ io.Writer) (int, error) {
		if age := time.Since(m.LastUse(c.ID)); age > time.Minute {
			t.Errorf("while its command runs it is unused for %v", age)
		}
		return 0, nil
	}
	if !m.LastUse(s.ID()).IsZero() {
		t.Error("it was used before its first command")
	}
	if _, err := s.Exec(t.Context(), Request{Argv: []string{"true"}}); err != nil {
		t.Error(err)
	}
	if last := m.LastUse(s.ID()); last.IsZero() || time.Since(last) > time.Minute || !m.LastUse("another").IsZero() {
		t.Error(last)
	}
}

// TestReaper checks which containers a sweep removes (contract, 19.7).
func TestReaper(t *testing.T) {
	at := func(ago time.Duration) time.Time { return time.Now().Add(-ago) }
	old := func(id string) Container {
		return Container{ID: id, State: Exited, Finished: at(900 * time.Second), Labels: AgentLabels(Key{Profile: "coder"})}
	}
	coder := func(o *Options) { o.Profile = "coder" }
	for name, c := range map[string]struct {
		have   []Container
		fail   string
		reaped int
	}{
		"no matches":                          {nil, "", 0},
		"exited 900 s, limit 600":             {[]Container{old("a")}, "", 1},
		"exited 60 s, limit 600":              {[]Container{{ID: "a", State: Exited, Finished: at(time.Minute), Labels: AgentLabels(Key{Profile: "coder"})}}, "", 0},
		"zero time":                           {[]Container{{ID: "a", State: Exited, Labels: AgentLabels(Key{Profile: "coder"})}}, "", 0},
		"another profile's, without a volume": {[]Container{{ID: "a", State: Exited, Finished: at(time.Hour)}}, "", 0},
		"somebody's hermes-agent=1 alone":     {[]Container{{ID: "a", State: Exited, Finished: at(time.Hour), Labels: map[string]string{LabelAgent: "1"}}}, "", 0},
		"list fails":                          {[]Container{old("a")}, "list", 0},
		"one of three can't be removed":       {[]Container{old("a"), old("b"), old("c")}, "remove b", 2},
		"one of three can't be inspected":     {[]Container{old("a"), old("b"), old("c")}, "inspect b", 2},
		"running ones are never candidates":   {[]Container{{ID: "a", State: Running, Created: at(time.Hour)}}, "", 0},
		"created ones without our label stay": {[]Container{{ID: "a", State: Created, Created: at(time.Hour)}}, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(c.have...)
			if c.fail != "" {
				f.failures[c.fail] = errFake
			}
			got, _, err := fakeManager(t, f, coder).Sweep(t.Context(), SweepOptions{MaxAge: 600 * time.Second})
			n := 0
			for _, r := range got {
				if r.Error == "" {
					n++
				}
			}
			if n != c.reaped || (err != nil) != (c.fail == "list") {
				t.Errorf("%d reaped, want %d; %v; %v", n, c.reaped, got, err)
			}
			if len(c.have) == 3 && len(f.callsOf("remove")) != 3-map[bool]int{true: 1}[strings.HasPrefix(c.fail, "inspect")] {
				t.Errorf("not all are tried: %q", f.calls)
			}
		})
	}
	t.Run("profile filter", func(t *testing.T) {
		f := newFake(old("a"))
		got, _, _ := fakeManager(t, f, nil).Sweep(t.Context(), SweepOptions{Profile: "writer"})
		if len(got) != 0 || f.callsOf("list")[0] != "list hermes-agent=1 hermes-profile=writer" {
			t.Errorf("%v: %q", got, f.calls)
		}
	})
	t.Run("the age is that of the idle window", func(t *testing.T) {
		for lifetime, age := range map[time.Duration]time.Duration{300 * time.Second: 600 * time.Second, 0: 120 * time.Second, 10 * time.Second: 120 * time.Second} {
			if got := MinOrphanAge(lifetime); got != age {
				t.Errorf("%v: %v, want %v", lifetime, got, age)
			}
		}
	})
	t.Run("when the next one is due", func(t *testing.T) {
		young, mine := old("a"), Container{ID: "b", State: Running, Labels: AgentLabels(Key{})}
		young.Finished = at(time.Minute)
		f := newFake(young, mine)
		_, next, err := fakeManager(t, f, coder).Sweep(t.Context(), SweepOptions{MaxAge: time.Hour})
		if want := young.Finished.Add(time.Hour); err != nil || !next.Equal(want) {
			t.Errorf("%v and not %v; %v", next, want, err)
		}
		f.removeContainer("a")
		if _, next, err = fakeManager(t, f, coder).Sweep(t.Context(), SweepOptions{MaxAge: time.Hour}); err != nil || !next.IsZero() {
			t.Errorf("with a running one alone: %v, %v", next, err)
		}
	})
	t.Run("once per process, of the current profile", func(t *testing.T) {
		f := newFake()
		m := fakeManager(t, f, func(o *Options) { o.SweepOrphans, o.Profile = true, "coder" })
		for i := range 3 {
			mustOpen(t, m, Key{Task: fmt.Sprint(i)})
		}
		if got := f.callsOf("list"); len(got) != 4 || got[0] != "list hermes-agent=1 hermes-profile=coder" { // The sweep lists once, and each Open lists once.
			t.Errorf("%q", got)
		}
	})
	t.Run("disabled", func(t *testing.T) {
		f := newFake()
		m := fakeManager(t, f, nil)
		mustOpen(t, m, Key{})
		f.wantCalls(t, "list", 1)
		m.opts.SweepOrphans = true // With SweepOrphans, the next Open sweeps again.
		mustOpen(t, m, Key{Task: "x"})
		f.wantCalls(t, "list", 3)
	})
	t.Run("a sweep that fails keeps nobody from working", func(t *testing.T) {
		f := newFake()
		f.failures["list"] = errFake
		mustOpen(t, fakeManager(t, f, func(o *Options) { o.SweepOrphans = true }), Key{})
	})
	t.Run("another volume's is left alone", func(t *testing.T) {
		c := old("a")
		c.Labels[LabelVolume] = "somebody else"
		f := newFake(c)
		if got, _, _ := fakeManager(t, f, nil).Sweep(t.Context(), SweepOptions{}); len(got) != 0 {
			t.Error(got)
		}
		f.wantCalls(t, "remove", 0)
	})
	t.Run("what is kept of containers goes with them, and not before", func(t *testing.T) {
		f := newFake()
		m := fakeManager(t, f, nil)
		for _, name := range []string{"agents", "other", "gone"} {
			if _, err := m.store.prepareRun(name); err != nil {
				t.Fatal(err)
			}
		}
		f.containers = append(f.containers, &Container{ID: "a", Name: "agents", State: Running, Labels: AgentLabels(Key{})},
			&Container{ID: "o", Name: "other", State: Running, Labels: map[string]string{LabelVolume: m.store.id}})
		if _, _, err := m.Sweep(t.Context(), SweepOptions{MaxAge: time.Nanosecond}); err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{runDir, recordsDir} {
			entries, _ := os.ReadDir(m.opts.State + "/" + dir)
			if len(entries) != 2 || entries[0].Name() != "agents" || entries[1].Name() != "other" {
				t.Errorf("%s: %v", dir, entries)
			}
		}
	})
	t.Run("dry run", func(t *testing.T) {
		f := newFake(old("a"))
		if got, _, _ := fakeManager(t, f, coder).Sweep(t.Context(), SweepOptions{DryRun: true}); len(got) != 1 {
			t.Error(got)
		}
		f.wantCalls(t, "remove", 0)
	})
	t.Run("ours: created and dead ones, never running ones", func(t *testing.T) {
		f := newFake()
		m := fakeManager(t, f, nil)
		for id, state := range map[string]State{"a": Created, "b": Dead, "c": Running, "d": Paused} {
			labels := AgentLabels(Key{})
			labels[LabelVolume] = m.store.id
			f.containers = append(f.containers, &Container{ID: id, State: state, Labels: labels, Created: at(time.Hour)})
		}
		if got, _, _ := m.Sweep(t.Context(), SweepOptions{}); len(got) != 2 || len(f.containers) != 2 {
			t.Errorf("%+v", got)
		}
	})
}

func TestTimes(t *testing.T) {
	want := time.Date(2026, 7, 21, 10, 20, 30, 123456789, time.UTC)
	for _, text := range []string{"2026-07-21T10:20:30.123456789Z", "2026-07-21T12:20:30.123456789+02:00"} {
		if got := parseTime(text); !got.Equal(want) || got.Location() != time.UTC {
			t.Errorf("%q: %v", text, got)
		}
	}
	for _, text := range []string{"", "0001-01-01T00:00:00Z", "yesterday"} {
		if got := parseTime(text); !got.IsZero() {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// TestAHelperThatOnlyAnsweredPingsHeldItsCaller checks that hinit sandbox show ends although a
// forged helper answers only pings.
func TestAHelperThatOnlyAnsweredPingsHeldItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		m := fakeManager(t, f, nil)
		s := mustOpen(t, m, Key{})
		f.helperOnlyPings = true
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := s.Describe(ctx); err == nil || ctx.Err() != nil || time.Since(begin) > time.Minute {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
		_ = m.Close()
	})
}
