package supervisor

import (
	"context"
	"errors"
)

// TaskLoop is the part of [Loop] that AwaitTask uses. Tests replace it.
type TaskLoop interface {
	Snapshot() *Snapshot
	Changed() <-chan struct{}
	Ended() <-chan struct{}
}

// AwaitTask blocks until the registered task with this name is down. For a check, it blocks only until the main process has
// exited, because that process gives the answer. AwaitTask returns the exit code of the task, or 128+n if signal n ended it. The
// error says why there is no exit code. If ctx ends first, the error is context.Cause(ctx).
func AwaitTask(ctx context.Context, loop TaskLoop, name string) (code int, err error) {
	for {
		changed := loop.Changed()
		v := loop.Snapshot().Find(name)
		switch {
		case v == nil:
			return 0, errors.New("it was removed while it ran")
		case v.State == Down, v.Kind == KindCheck && v.LastExit != nil && v.LastExit.Cause != CauseSpawn:
			return taskCode(v.LastExit)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-loop.Ended():
			return 0, ErrStopping
		}
	}
}

// taskCode returns the exit code of a finished task, or 128+n after signal n. The error says why the task has no exit code.
func taskCode(x *Exit) (code int, err error) {
	switch {
	case x == nil:
		return 0, errors.New("it was not run: the container is stopping")
	case x.Cause == CauseSpawn:
		return 0, errors.New(x.Error)
	case x.Signal != 0:
		return 128 + x.Signal, nil
	}
	return x.Code, nil
}
