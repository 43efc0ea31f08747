package forward

import (
	"encoding/json"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
)

// A forwarder that starts again in the middle of a private key must mask the rest of the key.
func TestTheRestOfAPrivateKeyWasSentAfterARestart(t *testing.T) {
	l, f := newLog(t)
	s := &fakeSink{}
	body := strings.Repeat("aB3/", 16)
	l.writeText("-----BEGIN " + "PRIVATE KEY-----")
	l.writeText(body)
	stop := startForwarder(t, f, s.send, nil)
	testkit.Until(t, "the beginning", func() bool { return len(s.texts(KindLog)) == 2 })
	stop()
	for _, text := range []string{body, "-----END " + "PRIVATE KEY-----", body} {
		l.writeText(text)
	}
	startForwarder(t, f, s.send, nil)
	testkit.Until(t, "the rest", func() bool { return len(s.texts(KindLog)) == 5 })
	if got := s.texts(KindLog); got[1] != "***" || got[2] != "***" || got[4] != body {
		t.Errorf("sent %q", got)
	}
}

func TestALineWithoutATimeWasRefused(t *testing.T) {
	_, f := newLog(t)
	if err := os.WriteFile(filepath.Join(f.dir, "current"), []byte("no time\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &fakeSink{}
	startForwarder(t, f, s.send, nil)
	testkit.Until(t, "the line", func() bool { return len(s.texts(KindLog)) == 1 })
	if age := time.Since(s.records[0].Time); age < 0 || age > time.Hour {
		t.Errorf("it has the time %v", s.records[0].Time)
	}
}

// A failed attempt to append a batch on a full disk must leave no part of the batch in the file. Otherwise the file grows far
// beyond its limit, and takes all space that becomes free.
func TestEachAttemptOnAFullDiskLeftAPartOfTheBatch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.jsonl")
	if err := appendToFile(path, 1<<30, []Record{{Text: "before"}}); err != nil {
		t.Fatal(err)
	}
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGXFSZ) // the write then fails with an error
	defer signal.Stop(signals)
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1 << 20, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_FSIZE, &old) }()
	batch := slices.Repeat([]Record{{Text: strings.Repeat("x", 1000)}}, 2000)
	for range 3 {
		if appendToFile(path, 1<<30, batch) == nil {
			t.Fatal("the disk was not full")
		}
	}
	if err := appendToFile(path, 1<<30, []Record{{Text: "after"}}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) != 2 {
		t.Errorf("the file has %d lines", len(lines))
	}
	for _, line := range lines {
		if !json.Valid([]byte(line)) {
			t.Errorf("%.100q is no record", line)
		}
	}
}
