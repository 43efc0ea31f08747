package lease

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"hinit/internal/fsutil"
)

// soon is less than idleEvery: what happens within it was told by the kernel.
const soon = 20 * time.Second

// idle returns a holder of a new local volume that looks only when the kernel tells of a change.
func idle(t *testing.T, wrap func(volume) volume) (l *Lease, records string) {
	t.Helper()
	home := newHome(t)
	l = New(home, fsutil.Self(), quiet)
	if wrap != nil {
		l.vol = wrap(l.vol)
	}
	looked := make(chan struct{}, 1)
	l.Looked = func() {
		select {
		case looked <- struct{}{}:
		default:
		}
	}
	if err := l.Acquire(t.Context(), UntilKnown); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Release(context.Background()) })
	select {
	case <-looked:
	case <-time.After(time.Minute):
		t.Fatal("it goes on looking every second")
	}
	return l, filepath.Join(home, DirName)
}

func lostSoon(t *testing.T, lost <-chan struct{}) {
	t.Helper()
	select {
	case <-lost:
	case <-time.After(soon):
		t.Error("a higher epoch was not noticed")
	}
}

func claimNext(t *testing.T, records string) {
	t.Helper()
	r := record{Version: recordVersion, Epoch: 2, Beat: 2, Heartbeat: true, Holder: Holder{Boot: "other", Host: "other"}}
	if err := os.WriteFile(filepath.Join(records, epochName(2)), r.encode(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// eventually waits until something is so, for less time than a holder that nobody tells anything needs to find it.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(soon); !so(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", soon, what)
		}
	}
}

// A holder that does not look by itself answers somebody who begins to wait.
func TestAHolderIsToldOfSomebodyWhoWaits(t *testing.T) {
	t.Parallel() // it waits
	_, records := idle(t, nil)
	mine := filepath.Join(records, epochName(1))
	before, err := os.ReadFile(mine)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(records, waiting), []byte("somebody"), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a renewal", func() bool {
		now, err := os.ReadFile(mine)
		return err == nil && string(now) != string(before)
	})
}

func TestAHolderIsToldOfAHigherEpoch(t *testing.T) {
	t.Parallel() // it waits
	l, records := idle(t, nil)
	lost := l.Lost()
	claimNext(t, records)
	lostSoon(t, lost)
}

// The agent may replace the directory of the records.
func TestAHolderIsToldOfANewDirectory(t *testing.T) {
	t.Parallel() // it waits
	for what, away := range map[string]func(string) error{
		"removed": os.RemoveAll,
		"moved":   func(dir string) error { return os.Rename(dir, dir+".old") },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel() // it waits
			l, records := idle(t, nil)
			lost := l.Lost()
			if err := away(records); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(records, 0o700); err != nil && !os.IsExist(err) { // the holder may have made it
				t.Fatal(err)
			}
			claimNext(t, records)
			lostSoon(t, lost)
		})
	}
}

// A holder starts nothing between a change and the end of the look that follows it.
func TestNothingStartsBeforeALookAtAChange(t *testing.T) {
	t.Parallel() // it waits
	var v *heldUp
	l, records := idle(t, func(d volume) volume {
		v = &heldUp{volume: d, free: make(chan struct{})}
		return v
	})
	if err := l.Check(); err != nil {
		t.Fatal(err)
	}
	if h := l.HandOver(); l.env.now()-h.Renewed > noticeTime {
		t.Errorf("nothing has changed, and the next generation would have to look: %v", l.env.now()-h.Renewed)
	}
	v.held.Store(true)
	lost := l.Lost()
	claimNext(t, records)
	eventually(t, "a start is refused", func() bool { return l.Check() != nil })
	if h := l.HandOver(); h.Renewed != l.looked {
		t.Error("something has changed, and the next generation would not have to look")
	}
	close(v.free)
	lostSoon(t, lost)
}

// heldUp is a volume that does not answer a look while held.
type heldUp struct {
	volume
	held atomic.Bool
	free chan struct{}
}

func (h *heldUp) highest() (uint64, error) {
	if h.held.Load() {
		<-h.free
	}
	return h.volume.highest()
}
