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

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
)

// recorder keeps the events of a watcher as short strings.
type recorder struct {
	mu     sync.Mutex
	events []string
	hashes []Hash
}

func (r *recorder) notify(ev Event) {
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
		return ev.Profile.Name + "=" + ev.State.Prior()
	case InputsChanged:
		return ev.Profile.Name + "#"
	case Warned:
		return "!" + ev.Warning.Message
	}
	return fmt.Sprintf("%T", ev)
}

// take returns what has come since the last take.
func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := r.events
	r.events = nil
	return events
}

// awaits polls until exactly the events in want have come, in their order.
func (r *recorder) awaits(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	defer func() {
		if t.Failed() {
			t.Logf("got %q, want %q", got, want)
		}
	}()
	eventually(t, fmt.Sprintf("events %q", want), func() bool {
		got = append(got, r.take()...)
		return len(got) >= len(want)
	})
	if !slices.Equal(got, want) {
		t.Fatalf("events %q, want %q", got, want)
	}
}

// watch starts a watcher that notices by notifications alone (the next poll is an hour away), unless o says otherwise, and
// waits for its first look.
func watch(t *testing.T, s *Store, o WatchOptions) (*Watcher, *recorder) {
	t.Helper()
	r := new(recorder)
	if o.Notify == nil {
		o.Notify = r.notify
	}
	if o.Poll == 0 {
		o.Poll = time.Hour
	}
	o.IdlePoll = time.Hour
	if o.Settle == 0 {
		o.Settle = 10 * time.Millisecond
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

func state(desired string) string { return `{"desired_state":"` + desired + `"}` }

// What a user saw: on a slow machine a profile that root had copied with "cp -a" was unknown for a minute. cp gives the directory to its
// owner last, when all files are in it, and the agent can't look into it before.
func TestADirectoryThatIsGivenToTheAgentLastIsAProfileAtOnce(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, profilesDir), 0o755), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	var actor *fsutil.Actor // this user, who is kept out by the mode
	if os.Geteuid() == 0 {
		if actor = fsutil.NewActor(fsutil.Identity{UID: 12345, GID: 12345}); !actor.Switches() {
			t.Skip("this container doesn't let root switch identity")
		}
	}
	s := Open(dir, actor, "")
	w, r := watch(t, s, WatchOptions{})
	rescan(t, w)
	r.take()
	hidden, home := filepath.Join(dir, profilesDir, ".being-copied"), filepath.Join(dir, profilesDir, "twin")
	if err := errors.Join(os.Mkdir(hidden, 0o700), os.WriteFile(filepath.Join(hidden, "SOUL.md"), nil, 0o644), os.Chmod(hidden, 0), os.Rename(hidden, home)); err != nil {
		t.Fatal(err)
	}
	write(t, s, "profiles/later/SOUL.md", "")
	r.awaits(t, "+later") // so it has looked at the other, in vain
	if err := os.Chmod(home, 0o755); err != nil {
		t.Fatal(err)
	}
	r.awaits(t, "+twin")
}

func TestWatchFirstLook(t *testing.T) {
	s := newVolume(t)
	write(t, s, "profiles/b/SOUL.md", "")
	write(t, s, "profiles/a/SOUL.md", "")
	write(t, s, "profiles/a/gateway_state.json", state("running"))
	write(t, s, "profiles/BAD/SOUL.md", "")
	known, _ := s.Profile("gone")
	w, r := watch(t, s, WatchOptions{Known: []Profile{known}})
	rescan(t, w)
	got := r.take()
	if len(got) == 0 || !strings.HasPrefix(got[0], `!cannot use profile directory "BAD"`) {
		t.Fatalf("events %q", got)
	}
	if want := []string{"-gone", "+default", "+a", "a=running", "+b"}; !slices.Equal(got[1:], want) {
		t.Errorf("events %q, want %q", got[1:], want)
	}
	rescan(t, w)
	if got := r.take(); len(got) != 0 {
		t.Errorf("nothing has changed: %q", got)
	}
}

func TestWatchLifeOfAProfile(t *testing.T) {
	s := newVolume(t)
	_, r := watch(t, s, WatchOptions{})
	r.awaits(t, "+default")
	path := func(rel string) string { return filepath.Join(s.root, rel) }

	write(t, s, "profiles/a/config.yaml", "")
	write(t, s, "profiles/other/x", "") // never becomes a profile
	write(t, s, "profiles/a/SOUL.md", "")
	r.awaits(t, "+a")
	write(t, s, "profiles/late/config.yaml", "")
	write(t, s, "gateway_state.json", state("running"))
	r.awaits(t, "default=running") // by now late is watched as well
	write(t, s, "profiles/late/SOUL.md", "")
	r.awaits(t, "+late")
	write(t, s, "profiles/a/gateway_state.json", state("running"))
	r.awaits(t, "a=running")
	if err := s.SetDesired("a", Stopped); err != nil {
		t.Fatal(err)
	}
	r.awaits(t, "a=stopped")

	// A renamed directory is another profile, whose inode the kernel watches under the old name.
	if err := os.Rename(path("profiles/a"), path("profiles/b")); err != nil {
		t.Fatal(err)
	}
	r.awaits(t, "-a", "+b", "b=stopped")
	if err := s.SetDesired("b", Running); err != nil {
		t.Fatal(err)
	}
	r.awaits(t, "b=running")

	// The marker may go: editors do that.
	if err := os.Remove(path("profiles/b/SOUL.md")); err != nil {
		t.Fatal(err)
	}
	if err := s.SetDesired("b", Stopped); err != nil {
		t.Fatal(err)
	}
	r.awaits(t, "b=stopped")

	if err := os.RemoveAll(path("profiles/b")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "b disappears", func() bool { return slices.Contains(r.take(), "-b") })
	if _, err := s.Create("b"); err != nil { // the same name, perhaps the same inode
		t.Fatal(err)
	}
	r.awaits(t, "+b")
	if err := s.SetDesired("b", Running); err != nil {
		t.Fatal(err)
	}
	r.awaits(t, "b=running")

	// The whole directory goes and comes.
	if err := os.Rename(path("profiles"), path("elsewhere")); err != nil {
		t.Fatal(err)
	}
	r.awaits(t, "-b", "-late")
	if err := os.Rename(path("elsewhere"), path("profiles")); err != nil {
		t.Fatal(err)
	}
	r.awaits(t, "+b", "b=running", "+late")
}

func TestWatchLinks(t *testing.T) {
	s := newVolume(t)
	write(t, s, "elsewhere/SOUL.md", "")
	write(t, s, "profiles/a/SOUL.md", "")
	w, r := watch(t, s, WatchOptions{})
	r.awaits(t, "+default", "+a")
	home := filepath.Join(s.root, "profiles/a")
	if err := errors.Join(os.Rename(home, home+".old"), os.Symlink(filepath.Join(s.root, "elsewhere"), home)); err != nil {
		t.Fatal(err)
	}
	rescan(t, w)
	got := strings.Join(r.take(), "\n")
	if !strings.Contains(got, "-a") || !strings.Contains(got, `directory "a": it is a symbolic link`) || strings.Contains(got, "+") {
		t.Errorf("events %q", got)
	}
}

func TestWatchInputs(t *testing.T) {
	s := newVolume(t)
	for _, name := range []string{"a", "b"} {
		write(t, s, "profiles/"+name+"/SOUL.md", "")
		write(t, s, "profiles/"+name+"/config.yaml", "x: 1")
	}
	w, r := watch(t, s, WatchOptions{})
	r.awaits(t, "+default", "+a", "+b")
	before, err := s.InputsHash("a")
	if err != nil || before == "" {
		t.Fatal(before, err)
	}
	w.Interest("a", before)
	write(t, s, "profiles/b/config.yaml", "x: 2")
	write(t, s, "profiles/a/config.yaml", "x: 2")
	r.awaits(t, "a#")
	now, _ := s.InputsHash("a")
	if r.hashes[0] != now || now == before {
		t.Errorf("hash %q, want %q", r.hashes[0], now)
	}
	for _, file := range []string{".env", "SOUL.md"} {
		write(t, s, "profiles/a/"+file, "y")
		r.awaits(t, "a#")
	}
	if err := os.Remove(filepath.Join(s.root, "profiles/a/.env")); err != nil {
		t.Fatal(err)
	}
	r.awaits(t, "a#")

	// What changed before Interest was called counts, if it says since when.
	old, _ := s.InputsHash("b")
	write(t, s, "profiles/b/config.yaml", "x: 3")
	w.Interest("b", old)
	r.awaits(t, "b#")

	w.Disinterest("a")
	write(t, s, "profiles/a/config.yaml", "x: 9")
	rescan(t, w)
	w.Interest("a", "") // from here on
	rescan(t, w)
	if got := r.take(); len(got) != 0 {
		t.Errorf("events %q", got)
	}
	write(t, s, "profiles/a/config.yaml", "x: 10")
	r.awaits(t, "a#")
}

func TestInputsHashUnreadable(t *testing.T) {
	s := newVolume(t)
	hash := func() Hash {
		h, err := s.InputsHash(Default)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	seen := map[Hash]string{hash(): "nothing"}
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"link", func() error { return os.Symlink("/etc/hostname", filepath.Join(s.root, "config.yaml")) }},
		{"no link", func() error { return os.Remove(filepath.Join(s.root, "config.yaml")) }},
		{"too large", func() error { return os.WriteFile(filepath.Join(s.root, ".env"), make([]byte, maxInput+1), 0o600) }},
		{"larger", func() error { return os.WriteFile(filepath.Join(s.root, ".env"), make([]byte, maxInput+2), 0o600) }},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		h := hash()
		if before, ok := seen[h]; ok != (step.what == "no link") {
			t.Errorf("%s: hash as with %q", step.what, before)
		}
		seen[h] = step.what
	}
	if _, err := s.InputsHash("../x"); !errors.Is(err, ErrName) {
		t.Errorf("impossible name: %v", err)
	}
}

func TestWatchPolls(t *testing.T) {
	full := func() (*hints, error) {
		h, err := newHints()
		if err == nil {
			h.add1 = func(string) error { return unix.ENOSPC }
		}
		return h, err
	}
	for name, source := range map[string]func() (*hints, error){
		"no instances left": func() (*hints, error) { return nil, unix.EMFILE },
		"no watches left":   full,
	} {
		t.Run(name, func(t *testing.T) {
			s := newVolume(t)
			_, r := watch(t, s, WatchOptions{Poll: 20 * time.Millisecond, hints: source})
			write(t, s, "profiles/a/SOUL.md", "")
			var all []string
			eventually(t, "a appears", func() bool {
				all = append(all, r.take()...)
				return slices.Contains(all, "+a")
			})
			write(t, s, "profiles/a/gateway_state.json", state("running"))
			eventually(t, "a changes", func() bool {
				all = append(all, r.take()...)
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

// TestWatchRecovers lets the watches run out for a while.
func TestWatchRecovers(t *testing.T) {
	s := newVolume(t)
	var mu sync.Mutex
	broken := true
	source := func() (*hints, error) {
		h, err := newHints()
		if err != nil {
			return nil, err
		}
		add := h.add1
		h.add1 = func(path string) error {
			mu.Lock()
			defer mu.Unlock()
			if broken && filepath.Base(path) == "a" {
				return unix.ENOSPC
			}
			return add(path)
		}
		return h, nil
	}
	write(t, s, "profiles/a/SOUL.md", "")
	w, r := watch(t, s, WatchOptions{hints: source})
	rescan(t, w)
	if got := strings.Join(r.take(), "\n"); !strings.Contains(got, "no space left on device") {
		t.Errorf("events %q", got)
	}
	mu.Lock()
	broken = false
	mu.Unlock()
	rescan(t, w)
	write(t, s, "profiles/a/gateway_state.json", state("running"))
	r.awaits(t, "a=running")
}

func TestWatchLostNotifications(t *testing.T) {
	s := newVolume(t)
	sources := make(chan *hints, 2)
	source := func() (*hints, error) {
		h, err := newHints()
		if err == nil {
			h.add1 = func(string) error { return nil } // watches nothing, and says that it does
			sources <- h
		}
		return h, err
	}
	_, r := watch(t, s, WatchOptions{hints: source})
	r.awaits(t, "+default")
	write(t, s, "profiles/a/SOUL.md", "")
	h := <-sources
	h.notify.Errors <- fsnotify.ErrEventOverflow
	r.awaits(t, "+a")

	// Even the source itself may end.
	write(t, s, "profiles/b/SOUL.md", "")
	if err := h.notify.Close(); err != nil {
		t.Fatal(err)
	}
	r.awaits(t, "+b")
	<-sources // there is a new one
}

func TestWatchVolumeVanishes(t *testing.T) {
	base := t.TempDir()
	s := Open(filepath.Join(base, "volume"), nil, "")
	w, r := watch(t, s, WatchOptions{})
	if err := w.Rescan(t.Context()); err == nil {
		t.Error("no error without a volume")
	}
	if got := r.take(); len(got) != 1 || !strings.HasPrefix(got[0], "!") {
		t.Errorf("events %q", got)
	}
	write(t, s, "profiles/a/SOUL.md", "")
	rescan(t, w)
	r.awaits(t, "+default", "+a")

	if err := os.Rename(s.root, s.root+".away"); err != nil {
		t.Fatal(err)
	}
	if err := w.Rescan(t.Context()); err == nil {
		t.Error("no error without a volume")
	}
	for _, ev := range r.take() {
		if !strings.HasPrefix(ev, "!") {
			t.Errorf("event %q: a volume that isn't there says nothing about its profiles", ev)
		}
	}
	// Another volume is there now.
	write(t, s, "profiles/b/SOUL.md", "")
	rescan(t, w)
	r.awaits(t, "-a", "+b")
	write(t, s, "profiles/b/gateway_state.json", state("running"))
	r.awaits(t, "b=running")
	write(t, s, "gateway_state.json", state("running"))
	r.awaits(t, "default=running")
}

func TestWatchStateBecomesUnusable(t *testing.T) {
	s := newVolume(t)
	write(t, s, "gateway_state.json", state("running"))
	w, r := watch(t, s, WatchOptions{})
	r.awaits(t, "+default", "default=running")
	write(t, s, "gateway_state.json", "{")
	rescan(t, w)
	rescan(t, w)
	got := r.take()
	if len(got) < 2 || !slices.Contains(got, "default=None") {
		t.Errorf("events %q", got)
	}
	warnings := slices.DeleteFunc(got, func(ev string) bool { return ev[0] != '!' })
	if len(warnings) != 1 || !strings.Contains(warnings[0], "gateway_state.json") {
		t.Errorf("warnings %q", warnings)
	}
	write(t, s, "gateway_state.json", state("stopped"))
	eventually(t, "usable again", func() bool { return slices.Contains(r.take(), "default=stopped") })
}

func TestRescanWaitsForNotify(t *testing.T) {
	s := newVolume(t)
	entered, release := make(chan struct{}), make(chan struct{})
	w, _ := watch(t, s, WatchOptions{Notify: func(Event) {
		entered <- struct{}{}
		<-release
	}})
	<-entered // the first look tells of the default profile
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := w.Rescan(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Rescan beside a blocked Notify: %v", err)
	}
	w.Interest(Default, "") // doesn't block either
	w.Interest(Default, "")
	close(release)
	rescan(t, w)
}

// TestManyWhoRescanAtOnceWaitForOneLook: fifty commands that each want the profiles read anew cost one look, not fifty.
func TestManyWhoRescanAtOnceWaitForOneLook(t *testing.T) {
	s := newVolume(t)
	entered, release := make(chan struct{}, 1), make(chan struct{})
	looks := 0
	w, _ := watch(t, s, WatchOptions{
		Notify: func(Event) {
			select {
			case entered <- struct{}{}:
			default:
			}
			<-release
		},
		hints: func() (*hints, error) { // each look asks for it while there is none
			looks++
			return nil, errors.New("none here")
		},
	})
	letGo := sync.OnceFunc(func() { close(release) })
	t.Cleanup(letGo)
	<-entered // the first look is held up
	const many = 50
	var answered sync.WaitGroup
	for range many {
		answered.Go(func() {
			if err := w.Rescan(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "all to wait", func() bool { return len(w.asked) == many })
	letGo()
	answered.Wait()
	if looks != 2 { // the answer to the last of them has let go of it
		t.Errorf("%d looks, one of which was there before; want one for all of them", looks)
	}
}

func TestWatchEnds(t *testing.T) {
	s := newVolume(t)
	ctx, cancel := context.WithCancel(t.Context())
	w := s.Watch(ctx, WatchOptions{})
	rescan(t, w)
	cancel()
	<-w.Done()
	if err := w.Rescan(t.Context()); !errors.Is(err, context.Canceled) {
		t.Errorf("Rescan after the end: %v", err)
	}
	w.Interest(Default, "")
}

// TestMark is about what makes a look worth while: gateways write to their homes all the time.
func TestMark(t *testing.T) {
	s := Open("/v", nil, "")
	for name, tt := range map[string]struct {
		event fsnotify.Event
		all   bool
		dirty string
		fresh string
	}{
		"database":             {fsnotify.Event{Name: "/v/state.db-wal", Op: fsnotify.Write}, false, "", ""},
		"log of the default":   {fsnotify.Event{Name: "/v/logs", Op: fsnotify.Chmod}, false, "", ""},
		"temporary state file": {fsnotify.Event{Name: "/v/profiles/a/.gateway_state_x.tmp", Op: fsnotify.Create}, false, "", ""},
		"state of default":     {fsnotify.Event{Name: "/v/gateway_state.json", Op: fsnotify.Create}, false, Default, ""},
		"state of a":           {fsnotify.Event{Name: "/v/profiles/a/gateway_state.json", Op: fsnotify.Write}, false, "a", ""},
		"marker":               {fsnotify.Event{Name: "/v/profiles/a/SOUL.md", Op: fsnotify.Create}, false, "a", ""},
		"config, no interest":  {fsnotify.Event{Name: "/v/profiles/a/config.yaml", Op: fsnotify.Write}, false, "", ""},
		"config, interest":     {fsnotify.Event{Name: "/v/profiles/i/config.yaml", Op: fsnotify.Write}, false, "i", ""},
		".env, interest":       {fsnotify.Event{Name: "/v/profiles/i/.env", Op: fsnotify.Remove}, false, "i", ""},
		"new directory":        {fsnotify.Event{Name: "/v/profiles/b", Op: fsnotify.Create}, false, "", "b"},
		"new, and watched":     {fsnotify.Event{Name: "/v/profiles/a", Op: fsnotify.Create}, false, "", "a"},
		"renamed away":         {fsnotify.Event{Name: "/v/profiles/b", Op: fsnotify.Rename}, false, "", "b"},
		"temporary directory":  {fsnotify.Event{Name: "/v/profiles/.b.new", Op: fsnotify.Create}, false, "", ""},
		"profiles is new":      {fsnotify.Event{Name: "/v/profiles", Op: fsnotify.Create}, true, "", ""},
		"home is gone":         {fsnotify.Event{Name: "/v/profiles/a", Op: fsnotify.Remove}, true, "", ""},
		"root is gone":         {fsnotify.Event{Name: "/v", Op: fsnotify.Rename}, true, "", ""},
		"mode of a home":       {fsnotify.Event{Name: "/v/profiles/a", Op: fsnotify.Chmod}, false, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := &Watcher{
				store: s, dirty: make(map[string]bool), fresh: make(map[string]bool), interest: map[string]Hash{"i": "x"},
				o: WatchOptions{Settle: time.Second, MaxSettle: 2 * time.Second},
				hints: &hints{watched: map[string]watched{
					"/v": {}, "/v/profiles": {}, "/v/profiles/a": {}, "/v/profiles/i": {},
				}},
			}
			w.mark(tt.event)
			if w.dirtyAll != tt.all || len(w.dirty) > 0 != (tt.dirty != "") || tt.dirty != "" && !w.dirty[tt.dirty] {
				t.Errorf("all %t, homes %v", w.dirtyAll, w.dirty)
			}
			if len(w.fresh) > 0 != (tt.fresh != "") || tt.fresh != "" && !w.fresh[tt.fresh] {
				t.Errorf("new %v", w.fresh)
			}
			if w.first.IsZero() == (tt.all || tt.dirty != "" || tt.fresh != "") {
				t.Errorf("a look is due: %t", !w.first.IsZero())
			}
		})
	}
}

// TestSettle checks that a burst is waited out and an endless one isn't.
func TestSettle(t *testing.T) {
	w := &Watcher{o: WatchOptions{Settle: 100 * time.Millisecond, MaxSettle: time.Second}}
	start := time.Now()
	w.settle(w.o.Settle)
	if wait, late := w.due.Sub(start), time.Until(w.due); wait < 100*time.Millisecond || late > 100*time.Millisecond {
		t.Errorf("looks after %v", wait)
	}
	w.first = start.Add(-950 * time.Millisecond)
	w.settle(w.o.Settle)
	if latest := w.first.Add(time.Second); !w.due.Equal(latest) {
		t.Errorf("looks at %v, want %v", w.due, latest)
	}
}

// TestWatchUnderNoise rewrites one state file without a pause: the watcher sees something of it all the same.
func TestWatchUnderNoise(t *testing.T) {
	s := newVolume(t)
	_, r := watch(t, s, WatchOptions{Settle: 50 * time.Millisecond, MaxSettle: 200 * time.Millisecond})
	r.awaits(t, "+default")
	deadline := time.Now().Add(testPatience)
	for i := 0; len(r.take()) == 0; i++ {
		if time.Now().After(deadline) {
			t.Fatalf("saw nothing in %v", testPatience)
		}
		write(t, s, "gateway_state.json", state(fmt.Sprint(i)))
	}
}

func TestWatch200(t *testing.T) {
	s := newVolume(t)
	for i := range 200 {
		write(t, s, fmt.Sprintf("profiles/p%03d/SOUL.md", i), "")
	}
	known, _, err := s.Discover()
	if err != nil {
		t.Fatal(err)
	}
	w, r := watch(t, s, WatchOptions{Known: known})
	rescan(t, w)
	for i := range 200 {
		write(t, s, fmt.Sprintf("profiles/p%03d/gateway_state.json", i), state("running"))
	}
	seen := make(map[string]bool)
	eventually(t, "all states are seen", func() bool {
		for _, ev := range r.take() {
			seen[ev] = true
		}
		return seen["p000=running"] && seen["p199=running"]
	})
	rescan(t, w)
	for _, ev := range r.take() {
		seen[ev] = true
	}
	for i := range 200 {
		if !seen[fmt.Sprintf("p%03d=running", i)] {
			t.Errorf("p%03d wasn't seen", i)
		}
	}
}

func TestAProfileThatAppearsIsNotKeptWaitingByNoise(t *testing.T) {
	w := &Watcher{
		store: &Store{root: "/data", marker: "SOUL.md"}, dirty: make(map[string]bool), fresh: make(map[string]bool), hints: new(hints),
		o: WatchOptions{Settle: time.Hour, Appear: time.Minute, MaxSettle: 2 * time.Hour},
	}
	soon := func() bool { return time.Until(w.due) <= time.Minute }
	w.mark(fsnotify.Event{Name: "/data/gateway_state.json", Op: fsnotify.Write})
	if soon() {
		t.Error("a state file is looked at in the middle of a burst")
	}
	w.mark(fsnotify.Event{Name: "/data/profiles/new", Op: fsnotify.Create})
	w.mark(fsnotify.Event{Name: "/data/gateway_state.json", Op: fsnotify.Write})
	if !soon() {
		t.Error("a new directory waits as long as a state file")
	}
	w.settled()
	w.mark(fsnotify.Event{Name: "/data/profiles/new/SOUL.md", Op: fsnotify.Create})
	if !soon() {
		t.Error("a new marker waits as long as a state file")
	}
	w.mark(fsnotify.Event{Name: "/data/gateway_state.json", Op: fsnotify.Write})
	if !soon() {
		t.Error("a state file keeps a new marker waiting")
	}
}

// lazy are options of a watcher that looks at nothing unless it is asked to.
var lazy = WatchOptions{Settle: time.Hour, Appear: time.Hour, MaxSettle: time.Hour}

func TestAProfileThatIsAskedForIsFoundWithoutALookAtTheOthers(t *testing.T) {
	s := newVolume(t)
	write(t, s, "profiles/a/SOUL.md", "")
	w, r := watch(t, s, lazy)
	rescan(t, w)
	r.take()
	write(t, s, "profiles/a/gateway_state.json", state("running")) // a look at everything would tell of it
	write(t, s, "profiles/new/SOUL.md", "")
	write(t, s, "profiles/new/gateway_state.json", state("stopped"))
	find := func(names ...string) []string {
		for _, name := range names {
			if err := w.Find(t.Context(), name); err != nil {
				t.Errorf("%q: %v", name, err)
			}
		}
		return r.take()
	}
	if got, want := find("new"), []string{"+new", "new=stopped"}; !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
	write(t, s, "profiles/file", "")
	if got := find("none", "new", "a", "file", "..", "", "BAD", Default); len(got) != 0 {
		t.Errorf("nothing is new: %q", got)
	}
}

func TestWhatIsNoPlainNewProfileIsFoundByALookAtEverything(t *testing.T) {
	for name, tt := range map[string]struct {
		make func(*testing.T, *Store) error
		want []string
	}{
		"renamed from another": {func(_ *testing.T, s *Store) error {
			return os.Rename(filepath.Join(s.root, "profiles/a"), filepath.Join(s.root, "profiles/new"))
		}, []string{"-a", "+new"}},
		"seen without its marker": {func(t *testing.T, s *Store) error {
			write(t, s, "profiles/bare/SOUL.md", "")
			return os.Rename(filepath.Join(s.root, "profiles/bare"), filepath.Join(s.root, "profiles/new"))
		}, []string{"+new"}},
		"a link": {func(_ *testing.T, s *Store) error {
			return os.Symlink(filepath.Join(s.root, "profiles/a"), filepath.Join(s.root, "profiles/new"))
		}, []string{`!cannot use profile directory "new": it is a symbolic link, and links are never followed`}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newVolume(t)
			write(t, s, "profiles/a/SOUL.md", "")
			write(t, s, "profiles/bare/x", "")
			w, r := watch(t, s, lazy)
			rescan(t, w)
			r.take()
			if err := tt.make(t, s); err != nil {
				t.Fatal(err)
			}
			if err := w.Find(t.Context(), "new"); err != nil {
				t.Fatal(err)
			}
			if got := r.take(); !slices.Equal(got, tt.want) {
				t.Errorf("events %q, want %q", got, tt.want)
			}
		})
	}
}

func TestANewDirectoryIsWatchedForItsMarker(t *testing.T) {
	s := newVolume(t)
	w, r := watch(t, s, WatchOptions{})
	rescan(t, w)
	r.take()
	write(t, s, "profiles/first/SOUL.md", "") // profiles/ itself is new
	r.awaits(t, "+first")
	write(t, s, "profiles/slow/config.yaml", "")
	write(t, s, "profiles/quick/SOUL.md", "")
	r.awaits(t, "+quick") // by now slow has been looked at
	write(t, s, "profiles/slow/SOUL.md", "")
	r.awaits(t, "+slow")
}
