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

	"hinit/internal/fsutil"
	"hinit/internal/testkit"
	"hinit/internal/watch"
)

// TestMark checks which events cause a scan. Gateways write to their homes all the time, so most
// must not.
func TestMark(t *testing.T) {
	s := Open("/v", nil, "")
	for name, tt := range map[string]struct {
		event watch.Event
		all   bool
		dirty string
		fresh string
	}{
		"database":             {watch.Event{Name: "/v/state.db-wal", Op: watch.Write}, false, "", ""},
		"log of the default":   {watch.Event{Name: "/v/logs", Op: watch.Chmod}, false, "", ""},
		"temporary state file": {watch.Event{Name: "/v/profiles/a/.gateway_state_x.tmp", Op: watch.Create}, false, "", ""},
		"state of default":     {watch.Event{Name: "/v/gateway_state.json", Op: watch.Create}, false, Default, ""},
		"state of a":           {watch.Event{Name: "/v/profiles/a/gateway_state.json", Op: watch.Write}, false, "a", ""},
		"marker":               {watch.Event{Name: "/v/profiles/a/SOUL.md", Op: watch.Create}, false, "a", ""},
		"config, no interest":  {watch.Event{Name: "/v/profiles/a/config.yaml", Op: watch.Write}, false, "", ""},
		"config, interest":     {watch.Event{Name: "/v/profiles/i/config.yaml", Op: watch.Write}, false, "i", ""},
		".env, interest":       {watch.Event{Name: "/v/profiles/i/.env", Op: watch.Remove}, false, "i", ""},
		"new directory":        {watch.Event{Name: "/v/profiles/b", Op: watch.Create}, false, "", "b"},
		"new, and watched":     {watch.Event{Name: "/v/profiles/a", Op: watch.Create}, false, "", "a"},
		"renamed away":         {watch.Event{Name: "/v/profiles/b", Op: watch.Rename}, false, "", "b"},
		"temporary directory":  {watch.Event{Name: "/v/profiles/.b.new", Op: watch.Create}, false, "", ""},
		"profiles is new":      {watch.Event{Name: "/v/profiles", Op: watch.Create}, true, "", ""},
		"home is gone":         {watch.Event{Name: "/v/profiles/a", Op: watch.Remove}, true, "", ""},
		"root is gone":         {watch.Event{Name: "/v", Op: watch.Rename}, true, "", ""},
		"mode of a home":       {watch.Event{Name: "/v/profiles/a", Op: watch.Chmod}, false, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := &Watcher{
				store: s, pendingScans: pendingScans{changedHomes: make(map[string]bool), changedNames: make(map[string]bool)}, inputHashes: map[string]InputHash{"i": "x"},
				options: WatchOptions{SettleTime: time.Second, MaxSettleTime: 2 * time.Second},
			}
			if err := w.inotify.Open(); err != nil {
				t.Fatal(err)
			}
			defer w.inotify.Close()
			w.inotify.AddPath = func(string) error { return nil }
			for i, path := range []string{"/v", "/v/profiles", "/v/profiles/a", "/v/profiles/i"} {
				if err := w.inotify.Add(path, fsutil.ID{Ino: uint64(i + 1)}); err != nil {
					t.Fatal(err)
				}
			}
			w.markChanged(tt.event)
			if w.scanAllNext != tt.all || len(w.changedHomes) > 0 != (tt.dirty != "") || tt.dirty != "" && !w.changedHomes[tt.dirty] {
				t.Errorf("all %t, homes %v", w.scanAllNext, w.changedHomes)
			}
			if len(w.changedNames) > 0 != (tt.fresh != "") || tt.fresh != "" && !w.changedNames[tt.fresh] {
				t.Errorf("new %v", w.changedNames)
			}
			if w.firstNotice.IsZero() == (tt.all || tt.dirty != "" || tt.fresh != "") {
				t.Errorf("a look is due: %t", !w.firstNotice.IsZero())
			}
		})
	}
}

// TestSettle checks that a scan waits for the end of a burst of events, but not longer than
// MaxSettleTime.
func TestSettle(t *testing.T) {
	w := &Watcher{options: WatchOptions{SettleTime: 100 * time.Millisecond, MaxSettleTime: time.Second}}
	start := time.Now()
	w.scheduleScan(w.options.SettleTime)
	if wait, late := w.scanAt.Sub(start), time.Until(w.scanAt); wait < 100*time.Millisecond || late > 100*time.Millisecond {
		t.Errorf("looks after %v", wait)
	}
	w.firstNotice = start.Add(-950 * time.Millisecond)
	w.scheduleScan(w.options.SettleTime)
	if latest := w.firstNotice.Add(time.Second); !w.scanAt.Equal(latest) {
		t.Errorf("looks at %v, want %v", w.scanAt, latest)
	}
}

// TestWatchUnderNoise checks that the watcher reports changes although one state file is rewritten
// without a pause.
func TestWatchUnderNoise(t *testing.T) {
	s := NewVolume(t)
	_, r := startWatcher(t, s, WatchOptions{SettleTime: 50 * time.Millisecond, MaxSettleTime: 200 * time.Millisecond})
	r.awaitEvents(t, "+default")
	deadline := time.Now().Add(testkit.Patience)
	for i := 0; len(r.takeEvents()) == 0; i++ {
		if time.Now().After(deadline) {
			t.Fatalf("saw nothing in %v", testkit.Patience)
		}
		Write(t, s, "gateway_state.json", stateJSON(fmt.Sprint(i)))
	}
}

func TestWatch200(t *testing.T) {
	s := NewVolume(t)
	for i := range 200 {
		Write(t, s, fmt.Sprintf("profiles/p%03d/SOUL.md", i), "")
	}
	known, _, err := s.Discover()
	if err != nil {
		t.Fatal(err)
	}
	w, r := startWatcher(t, s, WatchOptions{Known: known})
	rescan(t, w)
	for i := range 200 {
		Write(t, s, fmt.Sprintf("profiles/p%03d/gateway_state.json", i), stateJSON("running"))
	}
	seen := make(map[string]bool)
	testkit.Until(t, "all states are seen", func() bool {
		for _, ev := range r.takeEvents() {
			seen[ev] = true
		}
		return seen["p000=running"] && seen["p199=running"]
	})
	rescan(t, w)
	for _, ev := range r.takeEvents() {
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
		store: &Store{root: "/data", marker: "SOUL.md"}, pendingScans: pendingScans{changedHomes: make(map[string]bool), changedNames: make(map[string]bool)},
		options: WatchOptions{SettleTime: time.Hour, EarlySettleTime: time.Minute, MaxSettleTime: 2 * time.Hour},
	}
	soon := func() bool { return time.Until(w.scanAt) <= time.Minute }
	w.markChanged(watch.Event{Name: "/data/gateway_state.json", Op: watch.Write})
	if soon() {
		t.Error("a state file is looked at in the middle of a burst")
	}
	w.markChanged(watch.Event{Name: "/data/profiles/new", Op: watch.Create})
	w.markChanged(watch.Event{Name: "/data/gateway_state.json", Op: watch.Write})
	if !soon() {
		t.Error("a new directory waits as long as a state file")
	}
	w.clearPending()
	w.markChanged(watch.Event{Name: "/data/profiles/new/SOUL.md", Op: watch.Create})
	if !soon() {
		t.Error("a new marker waits as long as a state file")
	}
	w.markChanged(watch.Event{Name: "/data/gateway_state.json", Op: watch.Write})
	if !soon() {
		t.Error("a state file keeps a new marker waiting")
	}
}

func TestAProfileThatIsAskedForIsFoundWithoutAScanOfTheOthers(t *testing.T) {
	s := NewVolume(t)
	Write(t, s, "profiles/a/SOUL.md", "")
	w, r := startWatcher(t, s, scanOnRequest)
	rescan(t, w)
	r.takeEvents()
	Write(t, s, "profiles/a/gateway_state.json", stateJSON("running")) // A full scan would report this change too.
	Write(t, s, "profiles/new/SOUL.md", "")
	Write(t, s, "profiles/new/gateway_state.json", stateJSON("stopped"))
	find := func(names ...string) []string {
		for _, name := range names {
			if err := w.Find(t.Context(), name); err != nil {
				t.Errorf("%q: %v", name, err)
			}
		}
		return r.takeEvents()
	}
	if got, want := find("new"), []string{"+new", "new=stopped"}; !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
	Write(t, s, "profiles/file", "")
	if got := find("none", "new", "a", "file", "..", "", "BAD", Default); len(got) != 0 {
		t.Errorf("nothing is new: %q", got)
	}
}

func TestOtherChangesAreFoundByAFullScan(t *testing.T) {
	for name, tt := range map[string]struct {
		make func(*testing.T, *Store) error
		want []string
	}{
		"renamed from another": {func(_ *testing.T, s *Store) error {
			return os.Rename(filepath.Join(s.root, "profiles/a"), filepath.Join(s.root, "profiles/new"))
		}, []string{"-a", "+new"}},
		"seen without its marker": {func(t *testing.T, s *Store) error {
			Write(t, s, "profiles/bare/SOUL.md", "")
			return os.Rename(filepath.Join(s.root, "profiles/bare"), filepath.Join(s.root, "profiles/new"))
		}, []string{"+new"}},
		"a link": {func(_ *testing.T, s *Store) error {
			return os.Symlink(filepath.Join(s.root, "profiles/a"), filepath.Join(s.root, "profiles/new"))
		}, []string{`!cannot use profile directory "new": it is a symbolic link, and links are never followed`}},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewVolume(t)
			Write(t, s, "profiles/a/SOUL.md", "")
			Write(t, s, "profiles/bare/x", "")
			w, r := startWatcher(t, s, scanOnRequest)
			rescan(t, w)
			r.takeEvents()
			if err := tt.make(t, s); err != nil {
				t.Fatal(err)
			}
			if err := w.Find(t.Context(), "new"); err != nil {
				t.Fatal(err)
			}
			if got := r.takeEvents(); !slices.Equal(got, tt.want) {
				t.Errorf("events %q, want %q", got, tt.want)
			}
		})
	}
}

func TestANewDirectoryIsWatchedForItsMarker(t *testing.T) {
	s := NewVolume(t)
	w, r := startWatcher(t, s, WatchOptions{})
	rescan(t, w)
	r.takeEvents()
	Write(t, s, "profiles/first/SOUL.md", "") // The directory profiles itself is new.
	r.awaitEvents(t, "+first")
	Write(t, s, "profiles/slow/config.yaml", "")
	Write(t, s, "profiles/quick/SOUL.md", "")
	r.awaitEvents(t, "+quick") // By now, the watcher has scanned the directory slow.
	Write(t, s, "profiles/slow/SOUL.md", "")
	r.awaitEvents(t, "+slow")
}

func TestRescanWaitsForNotify(t *testing.T) {
	s := NewVolume(t)
	entered, release := make(chan struct{}), make(chan struct{})
	w, _ := startWatcher(t, s, WatchOptions{Notify: func(Event) {
		entered <- struct{}{}
		<-release
	}})
	<-entered // The first scan must report the default profile.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := w.Rescan(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Rescan beside a blocked Notify: %v", err)
	}
	w.WatchInputs(Default, "") // WatchInputs must not block either.
	w.WatchInputs(Default, "")
	close(release)
	rescan(t, w)
}

// TestManyRescansAtOnceWaitForOneScan checks that fifty concurrent requests share one scan.
func TestManyRescansAtOnceWaitForOneScan(t *testing.T) {
	s := NewVolume(t)
	entered, release := make(chan struct{}, 1), make(chan struct{})
	looks := 0
	w, _ := startWatcher(t, s, WatchOptions{
		Notify: func(Event) {
			select {
			case entered <- struct{}{}:
			default:
			}
			<-release
		},
		openNotifications: func(*watch.Set) error { // Each scan requests notifications as long as they are missing.
			looks++
			return errors.New("none here")
		},
	})
	letGo := sync.OnceFunc(func() { close(release) })
	t.Cleanup(letGo)
	<-entered // The first scan waits now.
	const many = 50
	var answered sync.WaitGroup
	for range many {
		answered.Go(func() {
			if err := w.Rescan(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	testkit.Until(t, "all to wait", func() bool { return len(w.requests) == many })
	letGo()
	answered.Wait()
	if looks != 2 { // All requests must have waited for the same scan.
		t.Errorf("%d looks, one of which was there before; want one for all of them", looks)
	}
}

func TestWatchLostNotifications(t *testing.T) {
	s := NewVolume(t)
	type source struct {
		events chan watch.Event
		lost   chan error
	}
	sources := make(chan source, 2)
	_, r := startWatcher(t, s, WatchOptions{openNotifications: func(h *watch.Set) error {
		err := h.Open()
		if err == nil {
			h.AddPath = func(string) error { return nil } // This AddPath watches nothing, but reports success.
			from := source{make(chan watch.Event), make(chan error)}
			h.Events, h.Lost = from.events, from.lost
			sources <- from
		}
		return err
	}})
	r.awaitEvents(t, "+default")
	Write(t, s, "profiles/a/SOUL.md", "")
	h := <-sources
	h.lost <- errors.New("the queue has overflowed")
	r.awaitEvents(t, "+a")

	// Changes must be seen even after the source of notifications has ended.
	Write(t, s, "profiles/b/SOUL.md", "")
	close(h.events)
	r.awaitEvents(t, "+b")
	<-sources // The watcher has opened a new source.
}

// TestAHomeWhoseLargeStateChangesAllTheTimeHoldsUpNoOther checks that PID 1 does not parse a large
// state file at each change.
func TestAHomeWhoseLargeStateChangesAllTheTimeHoldsUpNoOther(t *testing.T) {
	for _, end := range []string{"", "abc"} {
		t.Run("end "+end, func(t *testing.T) {
			t.Parallel()
			changeLargeState(t, end)
		})
	}
}

// changeLargeState keeps changing a state file. One letter of end follows the JSON text, so that
// each error differs.
func changeLargeState(t *testing.T, end string) {
	t.Helper()
	s := NewVolume(t)
	Write(t, s, "profiles/loud/SOUL.md", "")
	Write(t, s, "profiles/other/SOUL.md", "")
	_, r := startWatcher(t, s, WatchOptions{})
	r.awaitEvents(t, "+default", "+loud", "+other")
	padding := strings.Repeat(" ", 2*parsedBytesPerSecond)
	seen, begin := 0, time.Now()
	var first time.Time
	for i := 0; seen == 0 || time.Since(first) < time.Second; i++ {
		garbage := ""
		if end != "" {
			garbage = end[i%len(end):][:1]
		}
		Write(t, s, "profiles/loud/gateway_state.json", padding+stateJSON(fmt.Sprint(i))+garbage)
		time.Sleep(time.Millisecond)
		n := len(r.takeEvents())
		if seen == 0 && n > 0 {
			first = time.Now()
		}
		seen += n
	}
	if took := time.Since(begin); seen > 1+int(took/time.Second) { // On a busy machine, the loop takes more than a second.
		t.Errorf("%d states of it were parsed in %v", seen, took)
	}
	Write(t, s, "profiles/loud/gateway_state.json", padding+stateJSON("last"))
	Write(t, s, "profiles/other/gateway_state.json", stateJSON("running"))
	r.awaitEvents(t, "other=running", "loud=last")
}

// TestAGatewayThatBecomesReadyIsSeenAtOnce checks that a state file that is renamed into place is
// read at once, because the next start depends on it.
func TestAGatewayThatBecomesReadyIsSeenAtOnce(t *testing.T) {
	for name, tt := range map[string]struct {
		like watch.Event
		last time.Duration
		soon bool
	}{
		"renamed into place":      {watch.Event{Op: watch.Create}, 2 * time.Hour, true},
		"in the middle of a file": {watch.Event{Op: watch.Write}, 2 * time.Hour, false},
		"in the middle of noise":  {watch.Event{Op: watch.Create}, time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := &Watcher{
				store:        &Store{root: "/data", marker: "SOUL.md"},
				pendingScans: pendingScans{changedHomes: make(map[string]bool), changedNames: make(map[string]bool)},
				known:        map[string]*scannedProfile{"a": {scannedAt: time.Now().Add(-tt.last)}},
				options:      WatchOptions{SettleTime: time.Hour, EarlySettleTime: time.Minute, MaxSettleTime: 2 * time.Hour},
			}
			w.markChanged(watch.Event{Name: "/data/profiles/a/gateway_state.json", Op: tt.like.Op})
			if soon := time.Until(w.scanAt) <= time.Minute; soon != tt.soon {
				t.Errorf("soon is %t", soon)
			}
		})
	}
}
