package profiles

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
	"hinit/internal/testkit"
	"hinit/internal/watch"
)

// eventRecorder records the events of a watcher as short strings.
type eventRecorder struct {
	mu     sync.Mutex
	events []string
	hashes []InputHash
}

func (r *eventRecorder) notify(ev Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, describe(ev))
	if ev, ok := ev.(InputsChanged); ok {
		r.hashes = append(r.hashes, ev.Hash)
	}
}

func describe(ev Event) string {
	switch ev := ev.(type) {
	case Appeared:
		return "+" + ev.Profile.Name
	case Disappeared:
		return "-" + ev.Profile.Name
	case StateChanged:
		return ev.Profile.Name + "=" + ev.State.PriorState()
	case InputsChanged:
		return ev.Profile.Name + "#"
	case Warned:
		return "!" + ev.Warning.Message
	}
	return fmt.Sprintf("%T", ev)
}

// takeEvents returns the events since the last call of take.
func (r *eventRecorder) takeEvents() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := r.events
	r.events = nil
	return events
}

// awaitEvents polls until exactly the events in want have come, in this order.
func (r *eventRecorder) awaitEvents(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	defer func() {
		if t.Failed() {
			t.Logf("got %q, want %q", got, want)
		}
	}()
	testkit.Until(t, fmt.Sprintf("events %q", want), func() bool {
		got = append(got, r.takeEvents()...)
		return len(got) >= len(want)
	})
	if !slices.Equal(got, want) {
		t.Fatalf("events %q, want %q", got, want)
	}
}

// startWatcher starts a watcher and waits for its first scan. By default, the watcher depends on
// notifications, because its next poll is an hour away.
func startWatcher(t *testing.T, s *Store, o WatchOptions) (*Watcher, *eventRecorder) {
	t.Helper()
	r := new(eventRecorder)
	if o.Notify == nil {
		o.Notify = r.notify
	}
	if o.Poll == 0 {
		o.Poll = time.Hour
	}
	o.IdlePoll = time.Hour
	if o.SettleTime == 0 {
		o.SettleTime = 10 * time.Millisecond
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := s.Watch(ctx, o)
	t.Cleanup(func() {
		cancel()
		<-w.Done()
	})
	return w, r
}

func rescan(t *testing.T, w *Watcher) {
	t.Helper()
	if err := w.Rescan(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func stateJSON(desired string) string { return `{"desired_state":"` + desired + `"}` }

// TestADirectoryThatIsGivenToTheAgentLastIsAProfileAtOnce checks that a profile that root copies
// with "cp -a" is found at once. The agent can't scan it before cp changes its owner, at the end.
func TestADirectoryThatIsGivenToTheAgentLastIsAProfileAtOnce(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, profilesDir), 0o755), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	var actor *fsutil.Actor // The directory's mode excludes this user, who stands for the agent.
	if os.Geteuid() == 0 {
		if actor = fsutil.NewActor(fsutil.Identity{UID: 12345, GID: 12345}); !actor.SwitchesIdentity() {
			t.Skip("this container doesn't let root switch identity")
		}
	}
	s := Open(dir, actor, "")
	w, r := startWatcher(t, s, WatchOptions{})
	rescan(t, w)
	r.takeEvents()
	hidden, home := filepath.Join(dir, profilesDir, ".being-copied"), filepath.Join(dir, profilesDir, "twin")
	if err := errors.Join(os.Mkdir(hidden, 0o700), os.WriteFile(filepath.Join(hidden, "SOUL.md"), nil, 0o644), os.Chmod(hidden, 0), os.Rename(hidden, home)); err != nil {
		t.Fatal(err)
	}
	Write(t, s, "profiles/later/SOUL.md", "")
	r.awaitEvents(t, "+later") // By now, the watcher has scanned the other directory without success.
	if err := os.Chmod(home, 0o755); err != nil {
		t.Fatal(err)
	}
	r.awaitEvents(t, "+twin")
}

func TestWatchFirstScan(t *testing.T) {
	s := NewVolume(t)
	Write(t, s, "profiles/b/SOUL.md", "")
	Write(t, s, "profiles/a/SOUL.md", "")
	Write(t, s, "profiles/a/gateway_state.json", stateJSON("running"))
	Write(t, s, "profiles/BAD/SOUL.md", "")
	known, _ := s.Profile("gone")
	w, r := startWatcher(t, s, WatchOptions{Known: []Profile{known}})
	rescan(t, w)
	got := r.takeEvents()
	if len(got) == 0 || !strings.HasPrefix(got[0], `!cannot use profile directory "BAD"`) {
		t.Fatalf("events %q", got)
	}
	if want := []string{"-gone", "+default", "+a", "a=running", "+b"}; !slices.Equal(got[1:], want) {
		t.Errorf("events %q, want %q", got[1:], want)
	}
	rescan(t, w)
	if got := r.takeEvents(); len(got) != 0 {
		t.Errorf("nothing has changed: %q", got)
	}
}

func TestWatchLifeOfAProfile(t *testing.T) {
	s := NewVolume(t)
	_, r := startWatcher(t, s, WatchOptions{})
	r.awaitEvents(t, "+default")
	path := func(rel string) string { return filepath.Join(s.root, rel) }

	Write(t, s, "profiles/a/config.yaml", "")
	Write(t, s, "profiles/other/x", "") // This directory never becomes a profile.
	Write(t, s, "profiles/a/SOUL.md", "")
	r.awaitEvents(t, "+a")
	Write(t, s, "profiles/late/config.yaml", "")
	Write(t, s, "gateway_state.json", stateJSON("running"))
	r.awaitEvents(t, "default=running") // By now, the watcher also watches the directory late.
	Write(t, s, "profiles/late/SOUL.md", "")
	r.awaitEvents(t, "+late")
	Write(t, s, "profiles/a/gateway_state.json", stateJSON("running"))
	r.awaitEvents(t, "a=running")
	if err := s.SetDesired("a", Stopped); err != nil {
		t.Fatal(err)
	}
	r.awaitEvents(t, "a=stopped")

	// A renamed directory is another profile. The kernel watches its inode under the old name.
	if err := os.Rename(path("profiles/a"), path("profiles/b")); err != nil {
		t.Fatal(err)
	}
	r.awaitEvents(t, "-a", "+b", "b=stopped")
	if err := s.SetDesired("b", Running); err != nil {
		t.Fatal(err)
	}
	r.awaitEvents(t, "b=running")

	// The marker may disappear for a moment, because editors replace files.
	if err := os.Remove(path("profiles/b/SOUL.md")); err != nil {
		t.Fatal(err)
	}
	if err := s.SetDesired("b", Stopped); err != nil {
		t.Fatal(err)
	}
	r.awaitEvents(t, "b=stopped")

	if err := os.RemoveAll(path("profiles/b")); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "b disappears", func() bool { return slices.Contains(r.takeEvents(), "-b") })
	Write(t, s, "profiles/b/SOUL.md", "b\n") // The new file has the same name, and perhaps the same inode number.
	r.awaitEvents(t, "+b")
	if err := s.SetDesired("b", Running); err != nil {
		t.Fatal(err)
	}
	r.awaitEvents(t, "b=running")

	// The directory of profiles disappears and comes back.
	if err := os.Rename(path("profiles"), path("elsewhere")); err != nil {
		t.Fatal(err)
	}
	r.awaitEvents(t, "-b", "-late")
	if err := os.Rename(path("elsewhere"), path("profiles")); err != nil {
		t.Fatal(err)
	}
	r.awaitEvents(t, "+b", "b=running", "+late")
}

func TestWatchLinks(t *testing.T) {
	s := NewVolume(t)
	Write(t, s, "elsewhere/SOUL.md", "")
	Write(t, s, "profiles/a/SOUL.md", "")
	w, r := startWatcher(t, s, WatchOptions{})
	r.awaitEvents(t, "+default", "+a")
	home := filepath.Join(s.root, "profiles/a")
	if err := errors.Join(os.Rename(home, home+".old"), os.Symlink(filepath.Join(s.root, "elsewhere"), home)); err != nil {
		t.Fatal(err)
	}
	rescan(t, w)
	got := strings.Join(r.takeEvents(), "\n")
	if !strings.Contains(got, "-a") || !strings.Contains(got, `directory "a": it is a symbolic link`) || strings.Contains(got, "+") {
		t.Errorf("events %q", got)
	}
}

func TestWatchPolls(t *testing.T) {
	full := func(h *watch.Set) error {
		err := h.Open()
		h.AddPath = func(string) error { return unix.ENOSPC }
		return err
	}
	for name, source := range map[string]func(*watch.Set) error{
		"no instances left": func(*watch.Set) error { return unix.EMFILE },
		"no watches left":   full,
	} {
		t.Run(name, func(t *testing.T) {
			s := NewVolume(t)
			_, r := startWatcher(t, s, WatchOptions{Poll: 20 * time.Millisecond, openNotifications: source})
			Write(t, s, "profiles/a/SOUL.md", "")
			var all []string
			testkit.Until(t, "a appears", func() bool {
				all = append(all, r.takeEvents()...)
				return slices.Contains(all, "+a")
			})
			Write(t, s, "profiles/a/gateway_state.json", stateJSON("running"))
			testkit.Until(t, "a changes", func() bool {
				all = append(all, r.takeEvents()...)
				return slices.Contains(all, "a=running")
			})
			warnings := 0
			for _, ev := range all {
				if strings.HasPrefix(ev, "!") {
					warnings++
					if !strings.Contains(ev, "looking every 20ms instead") {
						t.Errorf("warning %q", ev)
					}
				}
			}
			if warnings != 1 {
				t.Errorf("%d warnings in %q", warnings, all)
			}
		})
	}
}

// TestWatchRecovers checks that changes are seen again after a time without available kernel
// watches.
func TestWatchRecovers(t *testing.T) {
	s := NewVolume(t)
	var mu sync.Mutex
	broken := true
	source := func(h *watch.Set) error {
		if err := h.Open(); err != nil {
			return err
		}
		add := h.AddPath
		h.AddPath = func(path string) error {
			mu.Lock()
			defer mu.Unlock()
			if broken && filepath.Base(path) == "a" {
				return unix.ENOSPC
			}
			return add(path)
		}
		return nil
	}
	Write(t, s, "profiles/a/SOUL.md", "")
	w, r := startWatcher(t, s, WatchOptions{openNotifications: source})
	rescan(t, w)
	if got := strings.Join(r.takeEvents(), "\n"); !strings.Contains(got, "no space left on device") {
		t.Errorf("events %q", got)
	}
	mu.Lock()
	broken = false
	mu.Unlock()
	rescan(t, w)
	Write(t, s, "profiles/a/gateway_state.json", stateJSON("running"))
	r.awaitEvents(t, "a=running")
}

func TestWatchVolumeVanishes(t *testing.T) {
	base := t.TempDir()
	s := Open(filepath.Join(base, "volume"), nil, "")
	w, r := startWatcher(t, s, WatchOptions{})
	if err := w.Rescan(t.Context()); err == nil {
		t.Error("no error without a volume")
	}
	if got := r.takeEvents(); len(got) != 1 || !strings.HasPrefix(got[0], "!") {
		t.Errorf("events %q", got)
	}
	Write(t, s, "profiles/a/SOUL.md", "")
	rescan(t, w)
	r.awaitEvents(t, "+default", "+a")

	if err := os.Rename(s.root, s.root+".away"); err != nil {
		t.Fatal(err)
	}
	if err := w.Rescan(t.Context()); err == nil {
		t.Error("no error without a volume")
	}
	for _, ev := range r.takeEvents() {
		if !strings.HasPrefix(ev, "!") {
			t.Errorf("event %q: a volume that isn't there says nothing about its profiles", ev)
		}
	}
	// Another volume is mounted now.
	Write(t, s, "profiles/b/SOUL.md", "")
	rescan(t, w)
	r.awaitEvents(t, "-a", "+b")
	Write(t, s, "profiles/b/gateway_state.json", stateJSON("running"))
	r.awaitEvents(t, "b=running")
	Write(t, s, "gateway_state.json", stateJSON("running"))
	r.awaitEvents(t, "default=running")
}

func TestWatchStateBecomesUnusable(t *testing.T) {
	s := NewVolume(t)
	Write(t, s, "gateway_state.json", stateJSON("running"))
	w, r := startWatcher(t, s, WatchOptions{})
	r.awaitEvents(t, "+default", "default=running")
	Write(t, s, "gateway_state.json", "{")
	rescan(t, w)
	rescan(t, w)
	got := r.takeEvents()
	if len(got) < 2 || !slices.Contains(got, "default=None") {
		t.Errorf("events %q", got)
	}
	warnings := slices.DeleteFunc(got, func(ev string) bool { return ev[0] != '!' })
	if len(warnings) != 1 || !strings.Contains(warnings[0], "gateway_state.json") {
		t.Errorf("warnings %q", warnings)
	}
	Write(t, s, "gateway_state.json", stateJSON("stopped"))
	testkit.Until(t, "usable again", func() bool { return slices.Contains(r.takeEvents(), "default=stopped") })
}

func TestWatchEnds(t *testing.T) {
	s := NewVolume(t)
	ctx, cancel := context.WithCancel(t.Context())
	w := s.Watch(ctx, WatchOptions{Notify: func(Event) {}})
	rescan(t, w)
	cancel()
	<-w.Done()
	if err := w.Rescan(t.Context()); !errors.Is(err, context.Canceled) {
		t.Errorf("Rescan after the end: %v", err)
	}
	w.WatchInputs(Default, "")
}

// scanOnRequest are options for a watcher that scans only on request.
var scanOnRequest = WatchOptions{SettleTime: time.Hour, EarlySettleTime: time.Hour, MaxSettleTime: time.Hour}
