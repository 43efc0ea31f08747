package leaseholder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/container/bootstatus"
	"hinit/internal/container/initlog"
	"hinit/internal/fsutil"
	"hinit/internal/lease"
	"hinit/internal/testkit"
	"hinit/supervisor"
)

// fakeHost replaces the other parts of PID 1, and records its calls.
type fakeHost struct {
	runPlan  boot.RunPlan
	snapshot supervisor.Snapshot
	tookOver chan struct{}

	mu    sync.Mutex
	calls []string
}

func (h *fakeHost) host() Host {
	return Host{
		Logger: initlog.New(func() io.Writer { return h }, func(string) bool { return true }, initlog.NewTerminationLog()), Config: h.Config, RunPlan: h.Route, Fatal: h.Fatal,
		RemoveSlot: h.RemoveSlot, DropProfiles: h.Reset, TakeOver: h.TakeOver,
	}
}

// Write records a line for the container log.
func (h *fakeHost) Write(line []byte) (int, error) {
	h.Say("%s", strings.TrimPrefix(strings.TrimSpace(string(line)), "[hinit] "))
	return len(line), nil
}

func (h *fakeHost) Config() *config.Config {
	return &config.Config{Services: map[string]config.Service{"web": {Name: "web"}, config.LeaseName: {Name: config.LeaseName}}}
}
func (h *fakeHost) Route() *boot.RunPlan { return &h.runPlan }
func (h *fakeHost) Say(format string, a ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, fmt.Sprintf(format, a...))
}
func (h *fakeHost) Fatal(reason string) { h.Say("fatal: %s", reason) }
func (h *fakeHost) RemoveSlot(_ context.Context, s string) error {
	h.Say("withdraw %s", s)
	return nil
}
func (h *fakeHost) Reset()                                    { h.Say("reset") }
func (h *fakeHost) TakeOver(context.Context, context.Context) { h.tookOver <- struct{}{} }
func (h *fakeHost) Snapshot() *supervisor.Snapshot            { return &h.snapshot }
func (h *fakeHost) Ready()                                    { h.Say("ready") }
func (h *fakeHost) StartCmdEarly()                            { h.Say("cmd") }

func (h *fakeHost) Do(_ context.Context, e supervisor.Event) error {
	h.Say("%T%+v", e, e)
	return nil
}

// fakeLock is a [lease.Lock] whose state the test sets.
type fakeLock struct {
	busy         bool       // another container holds the lock until the test sends to free
	unresponsive bool       // the volume does not answer until the test sends to free
	free         chan error // the values that a waiting Acquire returns
	lost         chan error
	checkErr     error // the value that Check returns
}

func (l *fakeLock) Check() error                { return l.checkErr }
func (l *fakeLock) CheckRoot(*fsutil.Dir) error { return nil }
func (l *fakeLock) HandOver() *lease.Handover   { return &lease.Handover{} }
func (l *fakeLock) TakeOver(*lease.Handover)    {}

func (l *fakeLock) Acquire(ctx context.Context, busy func(func() lease.Holder)) (<-chan error, error) {
	if l.busy {
		busy(func() lease.Holder { return lease.Holder{Host: "4f1c"} })
	}
	if l.busy || l.unresponsive {
		select {
		case err := <-l.free:
			return l.lost, err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return l.lost, nil
}

func newTestLease(t *testing.T) (*fakeHost, *fakeLock, *Lease) {
	t.Helper()
	h, l := &fakeHost{tookOver: make(chan struct{}, 1)}, &fakeLock{free: make(chan error, 1), lost: make(chan error, 1)}
	return h, l, newLease(h.host(), h, l, bootstatus.New())
}

// The loss of the lease must end gateways and services that need it, but neither the CMD nor services that a user has put into
// the scan directory.
func TestOnlyWhatNeedsTheLeaseIsEvicted(t *testing.T) {
	h, _, holder := newTestLease(t)
	h.snapshot.Services = []*supervisor.Service{
		{Name: "cmd", Kind: supervisor.KindCmd},
		{Name: "gateway-coder", Kind: supervisor.KindGateway},
		{Name: "web", Kind: supervisor.KindService},
		{Name: "foreign", Kind: supervisor.KindService},
		{Name: config.LeaseName, Kind: supervisor.KindService},
		{Name: "run/t_1", Kind: supervisor.KindRun},
	}
	holder.stopServices("it is lost")
	want := []string{"supervisor.Evict{Names:[gateway-coder web run/t_1] Cause:lease Reason:it is lost}", "withdraw gateway-coder", "withdraw web", "withdraw run/t_1"}
	if !slices.Equal(h.calls, want) {
		t.Errorf("it did %q", h.calls)
	}
}

// The holder must serve only after it got the lock. After a loss, everything must end before the holder asks for the lock
// again.
func TestATermBeginsWithTheLock(t *testing.T) {
	h, l, holder := newTestLease(t)
	if holder.Serves() {
		t.Error("it serves before it was asked to")
	}
	serving, ok := holder.ClaimAtBoot(t.Context(), h, false)
	if !ok || !holder.Serves() || serving.Err() != nil || !holder.BeginServing(serving) {
		t.Fatalf("ok %v, serves %v, over %v", ok, holder.Serves(), serving.Err())
	}
	if s := holder.Status(); s.State != client.LeaseHeld {
		t.Errorf("the lock is %+v", s)
	}
	l.checkErr = errors.New("it was paused")
	if err := holder.CheckStart("gateway-coder", supervisor.KindGateway); !errors.Is(err, l.checkErr) {
		t.Errorf("a gateway may start: %v", err)
	}
	if err := holder.CheckStart("cmd", supervisor.KindCmd); err != nil {
		t.Error(err)
	}
	l.checkErr, l.busy = nil, true
	l.lost <- errors.New("the server is silent")
	<-serving.Done()
	if text := context.Cause(serving).Error(); text != "the server is silent" || holder.BeginServing(serving) {
		t.Errorf("it ended because %q, and serves %v", text, holder.Serves())
	}
	l.free <- nil
	<-h.tookOver
	if s := holder.Status(); s.State != client.LeaseHeld || holder.Check() != nil {
		t.Errorf("the lock is %+v", s)
	}
}

// A container whose lock another holds must wait, name the other in its status, and take over when the lock is free.
func TestASecondContainerWaits(t *testing.T) {
	h, l, holder := newTestLease(t)
	l.busy = true
	serving, ok := holder.ClaimAtBoot(t.Context(), h, false)
	if !ok || holder.Serves() || serving != t.Context() {
		t.Fatalf("ok %v, serves %v", ok, holder.Serves())
	}
	s := holder.Status()
	if s.State != client.LeaseWaiting || !s.Standby || s.Holder == nil || s.Holder.Host != "4f1c" || time.Since(s.Since) > time.Minute {
		t.Errorf("the lock is %+v", s)
	}
	if err := holder.Check(); err == nil || !strings.Contains(err.Error(), "4f1c") {
		t.Errorf("it may serve: %v", err)
	}
	l.free <- errors.New("the volume refuses") // after this error, the holder must ask again
	l.free <- nil
	<-h.tookOver
}

// An init must take over although it had to wait twice: for the lease, and for an init of the same machine that still holds the
// directory.
func TestAContainerThatGetsItsLeaseBackServesAgain(t *testing.T) {
	h, home := &fakeHost{tookOver: make(chan struct{}, 1)}, t.TempDir()
	holder, other := New(h.host(), h, home, fsutil.ProcessActor(), bootstatus.New(), true), lease.NewVolume(home, fsutil.ProcessActor(), func(string) {})
	hold := func() {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
			t.Fatal(err)
		}
		holder.LeaseMessage(fmt.Sprintf("held %d", time.Duration(now.Nano()+int64(time.Hour)).Microseconds()))
	}
	hold()
	if _, ok := holder.ClaimAtBoot(t.Context(), h, false); !ok {
		t.Fatal("it does not serve")
	}
	holder.LeaseMessage("waits other")
	testkit.Until(t, "it waits for the lease", func() bool { return holder.Status().Holder != nil })
	if _, err := other.Acquire(t.Context(), func(func() lease.Holder) {}); err != nil {
		t.Fatal(err)
	}
	hold()
	testkit.Until(t, "it waits for the directory", func() bool { return holder.Status().Holder.Host != "other" })
	if err := other.HandOver().Lock.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-h.tookOver:
	case <-time.After(time.Minute):
		t.Fatal("no container serves the volume: this one has the lease and the directory, and does not take over")
	}
}

// Without standby, a container whose lock another holds must end, and log the reason.
func TestWithoutStandbyASecondContainerEnds(t *testing.T) {
	t.Setenv(standbyVariable, "0")
	h, l, holder := newTestLease(t)
	l.busy = true
	if _, ok := holder.ClaimAtBoot(t.Context(), h, false); ok || holder.Serves() {
		t.Errorf("ok %v, serves %v", ok, holder.Serves())
	}
	if last := h.calls[len(h.calls)-1]; !strings.Contains(last, "fatal: the lock of") || !strings.Contains(last, "HINIT_STANDBY=0") {
		t.Errorf("it did %q", h.calls)
	}
}

// A re-executed hinit without an inherited lock must acquire the lock. If another container holds it, the services that need it
// must end.
func TestAnImageThatInheritsNoLockTakesIt(t *testing.T) {
	for _, busy := range []bool{false, true} {
		_, l, holder := newTestLease(t)
		l.busy = busy
		holder.TakeOver(Handover{WasServing: true})
		serving := holder.Resume(t.Context())
		if busy {
			<-serving.Done()
		}
		if holder.Serves() == busy || (serving.Err() == nil) == busy {
			t.Errorf("busy %v: serves %v, over %v", busy, holder.Serves(), serving.Err())
		}
	}
}

// TestTheLockIsHeldSinceBeforeAReexecution checks that the status shows since when a container has its lock, although hinit was
// re-executed meanwhile. Otherwise doctor says that the container has served the profiles for a second.
func TestTheLockIsHeldSinceBeforeAReexecution(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, old := newTestLease(t)
		old.BeginServing(old.watchLock(t.Context(), nil, time.Now()))
		began := old.Status().Since
		<-time.After(time.Hour)
		_, l, holder := newTestLease(t)
		l.lost = nil
		holder.TakeOver(old.HandOver())
		holder.Resume(t.Context())
		if s := holder.Status(); s.State != client.LeaseHeld || !s.Since.Equal(began) {
			t.Errorf("the lock is %s since %v, want since %v", s.State, s.Since, began)
		}
		holder.TakeOver(Handover{WasServing: true}) // an older version does not hand over the time
		holder.Resume(t.Context())
		if s := holder.Status(); !s.Since.Equal(time.Now()) {
			t.Errorf("the lock is held since %v, want now", s.Since)
		}
	})
}

// A standby that had waited for an hour showed after a re-execution, and after each failed attempt, that it had just begun to
// wait.
func TestAStandbyWaitedSinceItsReexecution(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, l, old := newTestLease(t)
		l.busy = true
		old.ClaimAtBoot(t.Context(), h, false)
		began := old.Status().Since
		<-time.After(time.Hour)
		_, l, holder := newTestLease(t)
		l.busy = true
		holder.TakeOver(old.HandOver())
		holder.Resume(t.Context())
		for range 2 {
			synctest.Wait()
			if s := holder.Status(); s.State != client.LeaseWaiting || s.Holder == nil || !s.Since.Equal(began) {
				t.Errorf("the lock is %+v, want waiting since %v", s, began)
			}
			l.free <- errors.New("the volume refuses")
			<-time.After(2 * retryPause)
		}
	})
}

// TestAVolumeThatDoesNotAnswerHoldsUpNoReexecution checks that a re-executed hinit without an inherited lock does not
// wait for a volume that hangs. It must kill the services that need the lock, resume the others, and take the lock when
// the volume answers.
func TestAVolumeThatDoesNotAnswerHoldsUpNoReexecution(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, l, holder := newTestLease(t)
		l.unresponsive = true
		h.snapshot.Services = []*supervisor.Service{{Name: "gateway-coder", Kind: supervisor.KindGateway}}
		holder.TakeOver(Handover{WasServing: true})
		serving := holder.Resume(t.Context())
		<-serving.Done()
		synctest.Wait()
		if text := context.Cause(serving).Error(); !strings.Contains(text, "the volume has not answered") || holder.Serves() || holder.Check() == nil {
			t.Errorf("it ended because %q, and serves %v", text, holder.Serves())
		}
		if !slices.Contains(h.calls, "withdraw gateway-coder") {
			t.Errorf("it did %q", h.calls)
		}
		l.free <- nil
		<-h.tookOver
		if s := holder.Status(); s.State != client.LeaseHeld || holder.Check() != nil {
			t.Errorf("the lock is %+v", s)
		}
		l.lost <- errors.New("the end of the test")
		l.free <- nil
		<-h.tookOver
	})
}

// A container without profiles must serve without the lock and report no lock.
func TestWhereThereAreNoProfilesNobodyAsksForTheLock(t *testing.T) {
	h, _, holder := newTestLease(t)
	h.runPlan.ServicesOnly = true
	serving, ok := holder.ClaimAtBoot(t.Context(), h, false)
	if !ok || !holder.Serves() || serving != t.Context() {
		t.Errorf("ok %v, serves %v", ok, holder.Serves())
	}
	if s := holder.Status(); s.State != client.LeaseNone {
		t.Errorf("the lock is %+v", s)
	}
}
