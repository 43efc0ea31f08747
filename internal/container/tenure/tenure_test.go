package tenure

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/container/bootstatus"
	"hinit/internal/fsutil"
	"hinit/internal/lease"
	"hinit/supervisor"
)

// house is the rest of PID 1: it writes down what it is told.
type house struct {
	route boot.Route
	view  supervisor.Snapshot
	told  []string
}

func (h *house) Config() *config.Config {
	return &config.Config{Services: map[string]config.Service{"web": {Name: "web"}}}
}
func (h *house) Route() *boot.Route                         { return &h.route }
func (h *house) Say(format string, a ...any)                { h.told = append(h.told, fmt.Sprintf(format, a...)) }
func (h *house) Warn(format string, a ...any)               { h.Say(format, a...) }
func (h *house) Fatal(reason string)                        { h.Say("fatal: %s", reason) }
func (h *house) Withdraw(_ context.Context, s string) error { h.Say("withdraw %s", s); return nil }
func (h *house) Reset()                                     { h.Say("reset") }
func (h *house) TakeOver(context.Context, context.Context)  { h.Say("take over") }
func (h *house) Snapshot() *supervisor.Snapshot             { return &h.view }
func (h *house) Ready()                                     { h.Say("ready") }
func (h *house) StartCmdEarly()                             { h.Say("cmd") }

func (h *house) Do(_ context.Context, e supervisor.Event) error {
	h.Say("%T%+v", e, e)
	return nil
}

func newTenure(t *testing.T) (*house, *Tenure) {
	t.Helper()
	dir, err := os.MkdirTemp("", "tenure") //nolint:usetesting // that one's clean-up does not wait
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for end := time.Now().Add(8 * time.Second); os.RemoveAll(dir) != nil; { // the lease may be at its last write
			if time.Now().After(end) {
				t.Errorf("%s can't be removed", dir)
				return
			}
			<-time.After(10 * time.Millisecond)
		}
	})
	h := new(house)
	return h, New(h, h, lease.New(dir, fsutil.Self(), func(string) {}), bootstatus.New())
}

// TestOnlyWhatNeedsTheLeaseIsEvicted: the CMD goes on, and so does what somebody has put into the scan directory.
func TestOnlyWhatNeedsTheLeaseIsEvicted(t *testing.T) {
	h, tenure := newTenure(t)
	h.view.Services = []*supervisor.Service{
		{Name: "cmd", Kind: supervisor.KindCmd},
		{Name: "gateway-coder", Kind: supervisor.KindGateway},
		{Name: "web", Kind: supervisor.KindService},
		{Name: "foreign", Kind: supervisor.KindService},
	}
	tenure.evict("it is lost")
	want := []string{"supervisor.Evict{Names:[gateway-coder web] Reason:it is lost}", "withdraw gateway-coder", "withdraw web"}
	if !slices.Equal(h.told, want) {
		t.Errorf("it did %q", h.told)
	}
}

// TestATenureBeginsWithTheLease, and ends for whoever asks too late.
func TestATenureBeginsWithTheLease(t *testing.T) {
	h, tenure := newTenure(t)
	ctx, stop := context.WithCancel(t.Context())
	if tenure.Serves() {
		t.Error("it serves before it was asked to")
	}
	serving, ok := tenure.Claim(ctx, h, false)
	if !ok || !tenure.Serves() || serving.Err() != nil {
		t.Fatalf("ok %v, serves %v, over %v", ok, tenure.Serves(), serving.Err())
	}
	if s := tenure.Status(); s.State != string(lease.Held) {
		t.Errorf("the lease is %+v", s)
	}
	if err := tenure.Admit("gateway-coder", supervisor.KindGateway); err != nil {
		t.Error(err)
	}
	if !tenure.Serve(serving) {
		t.Error("it may not serve")
	}
	over, end := context.WithCancel(t.Context())
	end()
	if tenure.Serve(over) || tenure.Serves() {
		t.Error("it serves in a tenure that is over")
	}
	stop() // else it would try to have the lease back
	tenure.Release()
	if err := tenure.Admit("cmd", supervisor.KindCmd); err != nil {
		t.Error(err)
	}
}

// TestWhereThereAreNoProfilesNobodyAsksForALease.
func TestWhereThereAreNoProfilesNobodyAsksForALease(t *testing.T) {
	h, tenure := newTenure(t)
	h.route.Plain = true
	serving, ok := tenure.Claim(t.Context(), h, false)
	if !ok || !tenure.Serves() || serving != t.Context() {
		t.Errorf("ok %v, serves %v", ok, tenure.Serves())
	}
	if s := tenure.Status(); s.State != string(lease.None) {
		t.Errorf("the lease is %+v", s)
	}
}
