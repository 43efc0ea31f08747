package applet

import (
	"context"
	"errors"
	"os"
	"time"

	"hinit/client"
	"hinit/internal/s6/formats"
)

// recheck is the pause between two checks of a wait for a restart or an end, which may miss the beginning.
const recheck = 500 * time.Millisecond

func svwait(c *Call) int {
	until, all, limit := byte('u'), true, time.Duration(0)
	o := formats.Options{Words: c.Args, Plain: "UudDrRao", WithValue: "t"}
	for letter, value := range o.All() {
		switch letter {
		case 'a', 'o':
			all = letter == 'a'
		case 't':
			t, ok := formats.ParseMilliseconds(value)
			limit, o.Wrong = t, o.Wrong || !ok
		default:
			until = letter
		}
	}
	if o.Wrong {
		return c.usage("[ -U | -u | -d | -D | -r | -R ] [ -a | -o ] [ -t timeout ] servicedir...")
	}
	if len(o.Words) == 0 {
		return exitDone
	}
	ctx := context.Background() // a signal ends the tool as it ends any program
	return c.waitFor(ctx, o.Words, until, limit, all, nil)
}

// waitFor waits until all services are in a state, or one of them, and returns the exit code. before holds their slots from before
// the command, for restarts and ends; without one, only later changes count.
func (c *Call) waitFor(ctx context.Context, dirs []string, until byte, limit time.Duration, all bool, before map[string]client.Slot) int {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	for _, dir := range dirs { // s6 subscribes to all of them before it waits for any
		if _, err := c.slot(ctx, dir); err != nil {
			return c.notWaitable(ctx, dir, err)
		}
	}
	type result struct {
		dir string
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan result, len(dirs)) // so that nobody has to read the rest
	for _, dir := range dirs {
		old, known := before[dir]
		go func() { results <- result{dir, c.waitOne(ctx, dir, until, old, known)} }()
	}
	failed := exitDone
	for range dirs {
		r := <-results
		switch {
		case r.err == nil && !all:
			return exitDone
		case r.err == nil:
		case isPermanent(r.err):
			failed = exitNo
		default:
			return c.notWaitable(ctx, r.dir, r.err)
		}
	}
	if failed != exitDone {
		return c.fatal(failed, "some services reported permanent failure or their supervisor died")
	}
	return exitDone
}

func (c *Call) notWaitable(ctx context.Context, dir string, err error) int {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return c.fatal(exitTimeout, "timed out")
	case errors.Is(err, errNotListening):
		return c.fatal(exitSystem, "unable to s6_svstatus_read: No such file or directory")
	}
	return c.fatal(exitSystem, "unable to subscribe to events for "+dir+": "+strerror(err))
}

// waitOne waits for one service. A removed service counts as ended.
func (c *Call) waitOne(ctx context.Context, dir string, until byte, old client.Slot, known bool) error {
	init, path, err := c.reach(dir)
	if err != nil {
		return err
	}
	for {
		if known { // it may have been restarted, or have ended and be up again, before the wait begins
			if s, err := init.Slot(ctx, path); err == nil && passed(old, s, until) {
				return nil
			}
		}
		attempt, cancel := ctx, context.CancelFunc(func() {})
		if known {
			attempt, cancel = context.WithTimeout(ctx, recheck)
		}
		_, err := init.SlotWait(attempt, path, string(until))
		cancel()
		switch {
		case err == nil, isPermanent(err):
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case known && attempt.Err() != nil:
			continue
		case errors.Is(err, client.ErrUnknown) && (until == 'd' || until == 'D'):
			return nil
		}
		if err = missing(dir, err); err == nil {
			err = os.ErrNotExist
		}
		return err
	}
}

// passed reports whether another run is up than the old one, so that the old one has ended. Times don't tell: a re-execution
// changes them slightly.
func passed(old, now client.Slot, until byte) bool {
	return now.Up && (now.Ready || until != 'R') && (!old.Up || now.PID != old.PID || now.Run != old.Run)
}
