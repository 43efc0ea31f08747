package profiles

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
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

// makeEmptyDirs makes n directories that are no profiles.
func makeEmptyDirs(t testing.TB, s *Store, prefix string, n int) {
	t.Helper()
	for i := range n {
		if err := os.MkdirAll(filepath.Join(s.root, profilesDir, fmt.Sprintf("%s%06d", prefix, i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func TestManyEmptyDirectoriesHideNoProfile(t *testing.T) {
	s := NewVolume(t).SetMaxProfiles(50)
	makeEmptyDirs(t, s, "a", 1000)
	Write(t, s, "profiles/zz/SOUL.md", "")
	Write(t, s, "profiles/zz/gateway_state.json", stateJSON("running"))
	most := 0
	s.now = func() time.Time { most = max(most, runtime.NumGoroutine()); return time.Now() }
	before := runtime.NumGoroutine()
	plan := s.Reconcile(BootOptions{OnDecision: func(Decision) { most = max(most, runtime.NumGoroutine()) }})
	if len(plan.Profiles) != 2 || plan.Profiles[1].Profile.Name != "zz" || !plan.Profiles[1].Start {
		t.Errorf("decided %+v", plan.Profiles)
	}
	if most > before+5 {
		t.Errorf("%d goroutines at the boot, %d before", most, before)
	}
	if _, warnings, _ := s.Discover(); len(warnings) != 1 || !strings.Contains(warnings[0].Message, "more than 50 directories without SOUL.md") || !strings.Contains(warnings[0].Message, "profiles.max") {
		t.Errorf("warnings %q", warnings)
	}

	w, r := startWatcher(t, s, WatchOptions{Known: []Profile{s.profile(Default), s.profile("zz")}})
	rescan(t, w)
	rescan(t, w)
	got := r.takeEvents()
	if len(got) != 2 || !strings.HasPrefix(got[0], "!") || got[1] != "zz=running" {
		t.Errorf("events %q", got)
	}
	Write(t, s, "profiles/new/x", "") // The watcher finds this directory in spite of the limit.
	Write(t, s, "profiles/new/SOUL.md", "")
	r.awaitEvents(t, "+new")
	Write(t, s, "profiles/a000999/SOUL.md", "") // This profile is not found, because the volume has too many directories.
	if err := w.Find(t.Context(), "a000999"); err != nil {
		t.Error(err)
	}
	r.awaitEvents(t, "+a000999")
	Write(t, s, "profiles/a000500/SOUL.md", "")
	rescan(t, w)
	if got := r.takeEvents(); !slices.Contains(got, "+a000500") {
		t.Errorf("events %q", got)
	}
}

func TestMoreProfilesThanTheLimitAreLeftOutAloud(t *testing.T) {
	s := NewVolume(t).SetMaxProfiles(3)
	for _, name := range []string{"a", "b", "c", "d", "ran"} {
		Write(t, s, "profiles/"+name+"/SOUL.md", "")
	}
	Write(t, s, "profiles/ran/gateway_state.json", stateJSON("stopped")) // Listed before the profiles whose gateway never ran.
	found, warnings, err := s.Discover()
	names := make([]string, 0, len(found))
	for _, p := range found {
		names = append(names, p.Name)
	}
	if want := []string{Default, "a", "b", "ran"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("found %q, %v", names, err)
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0].Message, "more than 3 profiles") || !strings.Contains(warnings[0].Message, "profiles.max") {
		t.Errorf("warnings %q", warnings)
	}

	w, r := startWatcher(t, s, WatchOptions{Known: []Profile{s.profile(Default), s.profile("b"), s.profile("c"), s.profile("d")}})
	rescan(t, w)
	got := slices.DeleteFunc(r.takeEvents(), func(ev string) bool { return strings.HasPrefix(ev, "!") })
	if len(got) != 0 {
		t.Errorf("those that are there already stay: %q", got)
	}
	Write(t, s, "profiles/new/SOUL.md", "")
	if err := w.Find(t.Context(), "new"); err == nil || !strings.Contains(err.Error(), "profiles.max") {
		t.Errorf("one that is too many: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(s.root, "profiles/c")); err != nil {
		t.Fatal(err)
	}
	var all []string
	defer func() {
		if t.Failed() {
			t.Logf("events %q", all)
		}
	}()
	testkit.Until(t, "another has its place", func() bool {
		all = append(all, r.takeEvents()...)
		return slices.Contains(all, "-c") && slices.Contains(all, "+ran")
	})
}

func TestHundredsOfBadNamesAreNotAllNamed(t *testing.T) {
	s := NewVolume(t)
	Write(t, s, "profiles/ok/SOUL.md", "")
	for i := range 300 {
		if err := os.Symlink("ok", filepath.Join(s.root, profilesDir, fmt.Sprintf("l%03d", i))); err != nil {
			t.Fatal(err)
		}
	}
	_, warnings, err := s.Discover()
	if err != nil || len(warnings) != maxWarnings+1 || warnings[0].Profile != "l000" || !strings.Contains(warnings[maxWarnings].Message, "more directories that cannot be used") {
		t.Errorf("%d warnings, %v", len(warnings), err)
	}
}

// TestAQuietVolumeIsNotReadAgain checks that a polling watcher reads no unchanged files again.
func TestAQuietVolumeIsNotReadAgain(t *testing.T) {
	t.Parallel()
	s := NewVolume(t)
	Write(t, s, "profiles/a/SOUL.md", "")
	Write(t, s, "profiles/a/gateway_state.json", stateJSON("running"))
	Write(t, s, "profiles/bare/x", "")
	w := &Watcher{
		store: s, options: WatchOptions{Notify: func(Event) {}, openNotifications: (*watch.Set).Open}, inputHashes: map[string]InputHash{"a": "x"}, known: make(map[string]*scannedProfile),
		currentWarnings: currentWarnings{byKey: make(map[string]Warning)},
	}
	t.Cleanup(func() { w.inotify.Close() })
	var changed []string
	all := true
	testkit.Until(t, "the times of the files are old enough", func() bool {
		if w.dir == (stamp{}) || len(changed) > 0 {
			if err := w.scanAll(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		changed, all = w.changedTimes()
		return !all && len(changed) == 0
	})
	for _, tt := range []struct {
		file string
		want []string
		all  bool
	}{
		{"profiles/a/config.yaml", []string{"a"}, false},
		{"profiles/a/notes", nil, false},
		{"profiles/bare/SOUL.md", []string{"bare"}, false},
		{"gateway_state.json", []string{Default}, false},
		{"profiles/a/gateway_state.json", []string{"a"}, false},
		{"profiles/new/x", nil, true},
	} {
		Write(t, s, tt.file, stateJSON("stopped"))
		if changed, all = w.changedTimes(); !slices.Equal(changed, tt.want) && !tt.all || all != tt.all {
			t.Errorf("%s: %q, %t", tt.file, changed, all)
		}
		if err := os.Remove(filepath.Join(s.root, tt.file)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestANewVolumeIsNotReadAgainAMinuteLater checks that new profiles are not read again a minute
// after the boot.
func TestANewVolumeIsNotReadAgainAMinuteLater(t *testing.T) {
	s := NewVolume(t)
	Write(t, s, "profiles/a/SOUL.md", "")
	w := &Watcher{
		store: s, options: WatchOptions{Notify: func(Event) {}, IdlePoll: time.Hour, Poll: time.Second, openNotifications: (*watch.Set).Open},
		inputHashes: make(map[string]InputHash), known: make(map[string]*scannedProfile), currentWarnings: currentWarnings{byKey: make(map[string]Warning)},
	}
	t.Cleanup(func() { w.inotify.Close() })
	for _, silent := range []bool{false, true} {
		s.silentDirs["profiles/a"] = silent
		err := w.scanAll(t.Context())
		if next := time.Until(w.nextPoll); err != nil || next > blindPollInterval == silent || next < time.Second*30 {
			t.Errorf("a silent directory: %t; the next scan is in %s, %v", silent, next, err)
		}
	}
}

// TestWatchesGoToProfilesFirst checks that profiles get watches before other directories if the
// kernel permits only a few.
func TestWatchesGoToProfilesFirst(t *testing.T) {
	s := NewVolume(t)
	makeEmptyDirs(t, s, "a", 20)
	for i := range 10 {
		Write(t, s, fmt.Sprintf("profiles/p%d/SOUL.md", i), "")
	}
	var mu sync.Mutex
	tries := 0
	given := make(map[string]bool)
	source := func(h *watch.Set) error {
		if err := h.Open(); err != nil {
			return err
		}
		h.AddPath = func(path string) error {
			mu.Lock()
			defer mu.Unlock()
			tries++
			if len(given) >= 14 {
				return unix.ENOSPC
			}
			given[filepath.Base(path)] = true
			return nil
		}
		return nil
	}
	w, r := startWatcher(t, s, WatchOptions{openNotifications: source})
	rescan(t, w)
	warnings := slices.DeleteFunc(r.takeEvents(), func(ev string) bool { return !strings.HasPrefix(ev, "!") })
	if len(warnings) != 1 || !strings.Contains(warnings[0], "fs.inotify.max_user_watches") {
		t.Errorf("warnings %q", warnings)
	}
	mu.Lock()
	defer mu.Unlock()
	for i := range 10 {
		if !given[fmt.Sprintf("p%d", i)] {
			t.Errorf("p%d has no watch", i)
		}
	}
	if tries > 2*len(given) {
		t.Errorf("%d watches were asked for, and %d given", tries, len(given))
	}
}

func TestDirectoriesWithoutTheMarkerTakeFewWatches(t *testing.T) {
	s := NewVolume(t)
	makeEmptyDirs(t, s, "a", maxUnmarkedWatches+50)
	w := &Watcher{store: s, options: WatchOptions{Notify: func(Event) {}, openNotifications: (*watch.Set).Open}, inputHashes: make(map[string]InputHash), known: make(map[string]*scannedProfile), currentWarnings: currentWarnings{byKey: make(map[string]Warning)}}
	t.Cleanup(func() { w.inotify.Close() })
	for range 2 {
		if err := w.scanAll(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	watches := func() (n int) {
		w.inotify.Retain(func(string) bool { n++; return true })
		return n
	}
	if n := watches(); n != maxUnmarkedWatches+2 || w.someUnwatched {
		t.Errorf("%d watches, incomplete: %t", n, w.someUnwatched)
	}
	d, err := s.open()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for i := range 60 {
		makeEmptyDirs(t, s, fmt.Sprintf("new%d-", i), 1)
		if !w.scanNew(t.Context(), d, fmt.Sprintf("new%d-000000", i)) {
			t.Fatalf("a new directory makes everything be looked at")
		}
	}
	if n := watches(); n != maxUnmarkedWatches+2 || len(w.unmarkedWatches) != maxUnmarkedWatches || w.unmarkedWatches[maxUnmarkedWatches-1] != fmt.Sprintf("new%d-000000", 59) {
		t.Errorf("%d watches", n)
	}
}

// TestDirectoriesThatDoNotAnswerHoldFewCalls checks that only a few calls block at a time on a
// volume with many hanging directories.
func TestDirectoriesThatDoNotAnswerHoldFewCalls(t *testing.T) {
	t.Parallel()
	s := NewVolume(t)
	free := make(chan struct{})
	asked := 0
	ask := func() (int, error) {
		return examineEach(s, func(_ *fsutil.Dir, at reportProgress) (n int, err error) {
			for i := range 30 {
				rel := fmt.Sprintf("profiles/p%02d", i)
				if s.isSilent(rel) {
					continue
				}
				if !at(rel) {
					return n, errors.New("given up")
				}
				if i%10 == 5 {
					<-free
				}
				n++
			}
			return n, nil
		})
	}
	for ; asked < 10; asked++ {
		got, err := ask()
		if err == nil {
			if got != 27 {
				t.Errorf("%d directories answered", got)
			}
			break
		}
		if !errors.Is(err, errNoAnswer) {
			t.Fatal(err)
		}
	}
	if asked != 3 || s.hangingCallCount() != 3 || !s.isSilent("profiles/p05") {
		t.Errorf("after %d tries %d calls are stuck", asked, s.hangingCallCount())
	}
	close(free)
	testkit.Until(t, "all of them answer", func() bool { return s.hangingCallCount() == 0 && !s.isSilent("profiles/p25") })
	if got, err := ask(); got != 30 || err != nil {
		t.Errorf("%d, %v", got, err)
	}
}

// BenchmarkScans measures a full scan and a poll of a quiet volume, with N directories without the marker.
func BenchmarkScans(b *testing.B) {
	for _, n := range []int{2_500, 10_000, 40_000} {
		s := Open(b.TempDir(), nil, "").SetMaxProfiles(2000)
		makeEmptyDirs(b, s, "a", n)
		w := &Watcher{store: s, options: WatchOptions{Notify: func(Event) {}, openNotifications: (*watch.Set).Open}, inputHashes: make(map[string]InputHash), known: make(map[string]*scannedProfile), currentWarnings: currentWarnings{byKey: make(map[string]Warning)}}
		b.Run(fmt.Sprintf("all/%d", n), func(b *testing.B) {
			for b.Loop() {
				if err := w.scanAll(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/directory")
		})
		b.Run(fmt.Sprintf("quiet/%d", n), func(b *testing.B) {
			for w.dir == (stamp{}) {
				if err := w.scanAll(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				if _, all := w.changedTimes(); all {
					b.Fatal("it is not quiet")
				}
			}
		})
		w.inotify.Close()
	}
}

// TestADirectoryThatDoesNotAnswerAtTheBootIsNamed checks that the plan lists a hanging directory,
// so that its gateway can start later.
func TestADirectoryThatDoesNotAnswerAtTheBootIsNamed(t *testing.T) {
	s := NewVolume(t)
	Write(t, s, "profiles/slow/SOUL.md", "")
	Write(t, s, "profiles/well/SOUL.md", "")
	s.silentDirs["profiles/slow"] = true
	plan := s.Reconcile(BootOptions{})
	if !slices.Equal(plan.SilentHomes, []string{"slow"}) || plan.ListingSilent || len(plan.Profiles) != 2 {
		t.Errorf("silent %q, unread %v, profiles %+v", plan.SilentHomes, plan.ListingSilent, plan.Profiles)
	}
	s.silentDirs[profilesDir] = true
	if plan := s.Reconcile(BootOptions{}); !plan.ListingSilent {
		t.Errorf("%+v", plan)
	}
}
