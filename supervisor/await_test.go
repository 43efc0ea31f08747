package supervisor

import (
	"context"
	"errors"
	"testing"
)

// stubSupervisor is a supervisor whose services the test sets.
type stubSupervisor struct {
	view    Snapshot
	changed chan struct{}
	ended   chan struct{}
}

func (l *stubSupervisor) Snapshot() *Snapshot      { return &l.view }
func (l *stubSupervisor) Changed() <-chan struct{} { return l.changed }
func (l *stubSupervisor) Ended() <-chan struct{}   { return l.ended }

func TestWhatATaskCameTo(t *testing.T) {
	for _, tt := range []struct {
		task *Service
		code int
		err  string
	}{
		{&Service{State: Down, LastExit: &Exit{Code: 3}}, 3, ""},
		{&Service{State: Down, LastExit: &Exit{Signal: 9}}, 137, ""},
		{&Service{State: Down, LastExit: &Exit{Cause: CauseSpawn, Error: "no such file"}}, 0, "no such file"},
		{&Service{Kind: KindCheck, State: Stopping, LastExit: &Exit{}}, 0, ""}, // leftover processes do not change the result
		{&Service{State: Down}, 0, "it was not run: the container is stopping"},
		{nil, 0, "it was removed while it ran"},
	} {
		l := &stubSupervisor{}
		if tt.task != nil {
			tt.task.Name = "hook-1"
			l.view.Services = []*Service{tt.task}
		}
		code, err := AwaitTask(t.Context(), l, "hook-1")
		if code != tt.code || (err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err {
			t.Errorf("%+v: code %d, error %v", tt.task, code, err)
		}
	}
}

func TestAwaitTaskReportsWhyItEnds(t *testing.T) {
	running := Snapshot{Services: []*Service{{Name: "hook-1", State: Up}}}
	why := errors.New("its time is over")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := AwaitTask(ctx, &stubSupervisor{view: running}, "hook-1"); !errors.Is(err, why) {
		t.Errorf("the error is %v", err)
	}
	l := &stubSupervisor{view: running, ended: make(chan struct{})}
	close(l.ended)
	if _, err := AwaitTask(t.Context(), l, "hook-1"); !errors.Is(err, ErrStopping) {
		t.Errorf("the error is %v", err)
	}
}
