// Package tasks waits for what the supervisor runs once: a hook of the boot, a look of a check.
//
// It promises that whoever waits is told, also when the container ends meanwhile. It owns no goroutine.
package tasks

import (
	"context"
	"errors"

	"hinit/supervisor"
)

// Loop is what Await needs of [supervisor.Loop].
type Loop interface {
	Snapshot() *supervisor.Snapshot
	News() <-chan struct{}
	Ended() <-chan struct{}
}

// Await blocks until a task that was registered is down, and returns its exit code, 128+n after a signal. The error says why there is
// none; when ctx ends first, it is the cause.
func Await(ctx context.Context, loop Loop, name string) (code int, err error) {
	for {
		news := loop.News()
		v := loop.Snapshot().Find(name)
		switch {
		case v == nil:
			return 0, errors.New("it was removed while it ran")
		case v.State == supervisor.Down:
			return codeOf(v.LastExit)
		}
		select {
		case <-news:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-loop.Ended():
			return 0, supervisor.ErrStopping
		}
	}
}

func codeOf(x *supervisor.Exit) (code int, err error) {
	switch {
	case x == nil:
		return 0, errors.New("it was not run: the container is stopping")
	case x.Cause == supervisor.CauseSpawn:
		return 0, errors.New(x.Error)
	case x.Signal != 0:
		return 128 + x.Signal, nil
	}
	return x.Code, nil
}
