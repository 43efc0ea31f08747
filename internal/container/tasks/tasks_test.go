package tasks

import (
	"context"
	"errors"
	"testing"

	"hinit/supervisor"
)

// loop is a supervisor whose tasks are as the test says.
type loop struct {
	view  supervisor.Snapshot
	news  chan struct{}
	ended chan struct{}
}

func (l *loop) Snapshot() *supervisor.Snapshot { return &l.view }
func (l *loop) News() <-chan struct{}          { return l.news }
func (l *loop) Ended() <-chan struct{}         { return l.ended }

func TestWhatATaskCameTo(t *testing.T) {
	for _, tt := range []struct {
		task *supervisor.Service
		code int
		err  string
	}{
		{&supervisor.Service{State: supervisor.Down, LastExit: &supervisor.Exit{Code: 3}}, 3, ""},
		{&supervisor.Service{State: supervisor.Down, LastExit: &supervisor.Exit{Signal: 9}}, 137, ""},
		{&supervisor.Service{State: supervisor.Down, LastExit: &supervisor.Exit{Cause: supervisor.CauseSpawn, Error: "no such file"}}, 0, "no such file"},
		{&supervisor.Service{State: supervisor.Down}, 0, "it was not run: the container is stopping"},
		{nil, 0, "it was removed while it ran"},
	} {
		l := &loop{}
		if tt.task != nil {
			tt.task.Name = "hook-1"
			l.view.Services = []*supervisor.Service{tt.task}
		}
		code, err := Await(t.Context(), l, "hook-1")
		if code != tt.code || (err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err {
			t.Errorf("%+v: code %d, error %v", tt.task, code, err)
		}
	}
}

func TestWhoWaitsIsTold(t *testing.T) {
	running := supervisor.Snapshot{Services: []*supervisor.Service{{Name: "hook-1", State: supervisor.Up}}}
	why := errors.New("its time is over")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := Await(ctx, &loop{view: running}, "hook-1"); !errors.Is(err, why) {
		t.Errorf("the error is %v", err)
	}
	l := &loop{view: running, ended: make(chan struct{})}
	close(l.ended)
	if _, err := Await(t.Context(), l, "hook-1"); !errors.Is(err, supervisor.ErrStopping) {
		t.Errorf("the error is %v", err)
	}
}
