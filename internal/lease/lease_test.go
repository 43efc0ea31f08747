package lease

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hinit/internal/fsutil"
	"hinit/internal/reexec"
)

func quiet(string) {}

// Two inits on one local directory: the first has the lease, the second knows whose it is, and has it as soon as the first is gone,
// whatever became of the files.
func TestALocalVolumeIsLocked(t *testing.T) {
	t.Parallel() // it waits
	home := newHome(t)
	one, two := New(home, fsutil.Self(), quiet), New(home, fsutil.Self(), quiet)
	if err := one.Check(); err != nil {
		t.Errorf("before anybody asked: %v", err)
	}
	if err := one.Acquire(t.Context(), UntilKnown); err != nil {
		t.Fatal(err)
	}
	var held *HeldError
	if err := two.Acquire(t.Context(), UntilKnown); !errors.As(err, &held) || held.Holder.Boot != one.self.Boot || !errors.Is(err, ErrElsewhere) {
		t.Fatalf("the second got %v", err)
	}
	if err := two.Check(); !errors.Is(err, ErrElsewhere) || two.Status().State != Elsewhere {
		t.Errorf("the second may start something: %v, %+v", err, two.Status())
	}
	if err := os.RemoveAll(filepath.Join(home, ".hinit")); err != nil {
		t.Fatal(err)
	}
	if err := two.Acquire(t.Context(), UntilKnown); !errors.As(err, &held) || held.Holder.Boot != "" {
		t.Fatalf("without a record the second got %v", err)
	}
	select {
	case <-one.Lost():
		t.Error("the lease was lost")
	default:
	}
	if err := one.Check(); err != nil {
		t.Error(err)
	}
	waited := make(chan error, 1)
	go func() { waited <- two.Acquire(t.Context(), UntilTaken) }()
	one.Release(t.Context())
	if err := <-waited; err != nil || two.Status().State != Held || two.Status().Heartbeat {
		t.Errorf("after the release: %v, %+v", err, two.Status())
	}
	two.Release(t.Context())
}

// A generation hands its lock over: nobody gets it in between, and the next one lets go of it.
func TestALockIsHandedOver(t *testing.T) {
	t.Parallel() // it waits
	home := newHome(t)
	old := New(home, fsutil.Self(), quiet)
	if err := old.Acquire(t.Context(), UntilKnown); err != nil {
		t.Fatal(err)
	}
	c := reexec.NewCodec()
	data, err := c.Encode(old.HandOver())
	if err != nil || len(c.Keep()) != 1 {
		t.Fatalf("%d descriptors, %v", len(c.Keep()), err)
	}
	var h Handover
	if err := reexec.NewCodec().Decode(data, &h); err != nil {
		t.Fatal(err)
	}
	next := New(home, fsutil.Self(), quiet)
	next.TakeOver(&h)
	if next.Status().State != Held || next.self.Boot != old.self.Boot {
		t.Fatalf("%+v", next.Status())
	}
	other := New(home, fsutil.Self(), quiet)
	if err := other.Acquire(t.Context(), UntilKnown); !errors.Is(err, ErrElsewhere) {
		t.Errorf("another got it: %v", err)
	}
	next.Release(t.Context())
	if err := other.Acquire(t.Context(), UntilKnown); err != nil {
		t.Errorf("after the release: %v", err)
	}
	other.Release(t.Context())
}

// A volume that is not there can hold no lease, and forbids nothing.
func TestNoVolumeNoLease(t *testing.T) {
	l := New(filepath.Join(t.TempDir(), "none"), fsutil.Self(), quiet)
	if err := l.Acquire(t.Context(), UntilKnown); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if err := l.Check(); err != nil || l.Status().State != None {
		t.Errorf("%v, %+v", err, l.Status())
	}
}

// A volume that does not answer says so in time; its answer is not lost.
func TestAVolumeThatHangs(t *testing.T) {
	free := make(chan struct{})
	home := newHome(t)
	l := New(home, fsutil.Self(), quiet)
	l.vol = hanging{l.vol, free}
	l.env.after = func(time.Duration) <-chan time.Time { return time.After(10 * time.Millisecond) }
	if err := l.Acquire(t.Context(), UntilKnown); !errors.Is(err, ErrSlow) {
		t.Errorf("got %v", err)
	}
	// Another container may have it: nothing may be started.
	if err := l.Check(); !errors.Is(err, ErrElsewhere) || l.Status().State != Waiting || !strings.Contains(l.Status().Detail, "does not answer") {
		t.Errorf("while nobody knows whose it is: %v, %+v", err, l.Status())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Acquire(ctx, UntilTaken); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	close(free)
	if err := l.Acquire(t.Context(), UntilTaken); err != nil || l.Status().State != Held {
		t.Errorf("%v, %+v", err, l.Status())
	}
	l.Release(t.Context())
}

type hanging struct {
	volume
	free chan struct{}
}

func (h hanging) lock() (io.Closer, error) {
	<-h.free
	return h.volume.lock()
}

// What a file says is believed only as far as it makes sense.
func TestRecords(t *testing.T) {
	r := record{Version: recordVersion, Epoch: 7, Beat: 3, Holder: Self()}
	back, ok := parse(r.encode())
	if !ok || back.Epoch != 7 || back.Boot != r.Boot || len(r.encode()) != size || !back.Since.Equal(r.Since) {
		t.Errorf("%+v came back as %+v", r, back)
	}
	for _, text := range []string{
		"", "garbled", "{}", `{"version":2,"epoch":1}`, `{"version":1,"epoch":0}`, `{"version":1,"epoch":18446744073709551615}`, `{"version":1,"epoch":-1}`,
	} {
		if r, ok := parse([]byte(text)); ok || r.Epoch != 0 {
			t.Errorf("%q is believed: %+v", text, r)
		}
	}
	bad := record{Version: recordVersion, Epoch: 1, Holder: Holder{Boot: "b", Host: "a\x1b[31m\u202e\n" + strings.Repeat("x", 100)}}
	if r, _ := parse(bad.encode()); strings.ContainsAny(r.Host, "\x1b\n\u202e") || len(r.Host) > 64 {
		t.Errorf("the host is shown as %q", r.Host)
	}
}

// Which holder was an earlier life of this container.
func TestOutlived(t *testing.T) {
	mounts := []byte("22 27 0:50 / / rw - overlay overlay rw,lowerdir=/a,upperdir=/b,workdir=/c\n" +
		"30 22 8:1 /containers/1/hostname /etc/hostname rw - ext4 /dev/sda rw\n")
	of := func(h Holder, mounts []byte) Holder {
		h.Container = containerOf(h, mounts)
		return h
	}
	me := of(Holder{Boot: "new", Host: "h", Machine: "m", PIDSpace: 2}, mounts)
	if me.Container == "" {
		t.Fatal("a container is not known again")
	}
	started := func(pid int) string { return map[int]string{5: "50"}[pid] }
	for _, c := range []struct {
		what string
		old  Holder
		want bool
	}{
		{"the same container", of(Holder{Boot: "old", Host: "h", Machine: "m", PIDSpace: 1}, mounts), true},
		{"another machine", of(Holder{Boot: "old", Host: "h", Machine: "n", PIDSpace: 1}, mounts), false},
		{"another host name", of(Holder{Boot: "old", Host: "i", Machine: "m", PIDSpace: 1}, mounts), false},
		{"another layer", of(Holder{Boot: "old", Host: "h", Machine: "m", PIDSpace: 1}, []byte(strings.ReplaceAll(string(mounts), "/b", "/x"))), false},
		{"nothing of its own", of(Holder{Boot: "old", Host: "h", Machine: "m", PIDSpace: 1}, nil), false},
		{"alive beside it", of(Holder{Boot: "old", Host: "h", Machine: "m", PIDSpace: 2, PID: 5, Started: "50"}, mounts), false},
		{"dead beside it", of(Holder{Boot: "old", Host: "h", Machine: "m", PIDSpace: 2, PID: 5, Started: "49"}, mounts), true},
	} {
		if got := me.outlived(c.old, started); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
	if me.outlived(me, started) {
		t.Error("it has outlived itself")
	}
}

// newHome makes a directory that is removed when the last write of a holder has ended, which may come after the release.
func newHome(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "lease-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for end := time.Now().Add(10 * time.Second); os.RemoveAll(dir) != nil && time.Now().Before(end); {
			<-time.After(10 * time.Millisecond)
		}
	})
	return dir
}
