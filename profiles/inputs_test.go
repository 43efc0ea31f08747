package profiles

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestWatchInputs(t *testing.T) {
	s := NewVolume(t)
	for _, name := range []string{"a", "b"} {
		Write(t, s, "profiles/"+name+"/SOUL.md", "")
		Write(t, s, "profiles/"+name+"/config.yaml", "x: 1")
	}
	w, r := startWatcher(t, s, WatchOptions{})
	r.awaitEvents(t, "+default", "+a", "+b")
	before, err := s.InputsHash("a")
	if err != nil || before == "" {
		t.Fatal(before, err)
	}
	w.WatchInputs("a", before)
	Write(t, s, "profiles/b/config.yaml", "x: 2")
	Write(t, s, "profiles/a/config.yaml", "x: 2")
	r.awaitEvents(t, "a#")
	now, _ := s.InputsHash("a")
	if r.hashes[0] != now || now == before {
		t.Errorf("hash %q, want %q", r.hashes[0], now)
	}
	for _, file := range []string{".env", "SOUL.md"} {
		Write(t, s, "profiles/a/"+file, "y")
		r.awaitEvents(t, "a#")
	}
	if err := os.Remove(filepath.Join(s.root, "profiles/a/.env")); err != nil {
		t.Fatal(err)
	}
	r.awaitEvents(t, "a#")

	// A change before the call of WatchInputs must count if the caller passes the old hash.
	old, _ := s.InputsHash("b")
	Write(t, s, "profiles/b/config.yaml", "x: 3")
	w.WatchInputs("b", old)
	r.awaitEvents(t, "b#")

	w.StopWatchingInputs("a")
	Write(t, s, "profiles/a/config.yaml", "x: 9")
	rescan(t, w)
	w.WatchInputs("a", "") // From here on, only a further change of profile a counts.
	rescan(t, w)
	if got := r.takeEvents(); len(got) != 0 {
		t.Errorf("events %q", got)
	}
	Write(t, s, "profiles/a/config.yaml", "x: 10")
	r.awaitEvents(t, "a#")
}

func TestInputsHashUnreadable(t *testing.T) {
	s := NewVolume(t)
	hash := func() InputHash {
		h, err := s.InputsHash(Default)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	seen := map[InputHash]string{hash(): "nothing"}
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"link", func() error { return os.Symlink("/etc/hostname", filepath.Join(s.root, "config.yaml")) }},
		{"no link", func() error { return os.Remove(filepath.Join(s.root, "config.yaml")) }},
		{"too large", func() error { return os.WriteFile(filepath.Join(s.root, ".env"), make([]byte, maxInputSize+1), 0o600) }},
		{"larger", func() error { return os.WriteFile(filepath.Join(s.root, ".env"), make([]byte, maxInputSize+2), 0o600) }},
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
	if _, err := s.InputsHash("../x"); !errors.Is(err, ErrInvalidName) {
		t.Errorf("impossible name: %v", err)
	}
}
