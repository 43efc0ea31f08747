package applet

import (
	"context"
	"errors"
	"strconv"
	"time"

	"hinit/client"
	"hinit/internal/s6/formats"
)

func svwait(c *Call, options []option) int {
	until, all := byte('u'), true
	var limit time.Duration
	for _, o := range options {
		switch o.letter {
		case 'a', 'o':
			all = o.letter == 'a'
		case 't':
			var ok bool
			if limit, ok = formats.ParseMilliseconds(o.value); !ok {
				return wrongUsage
			}
		default:
			until = o.letter
		}
	}
	return c.waitFor(c.Args, until, limit, all, nil)
}

// waitFor waits until all services are in the state until, or any of them if all is false. It returns the exit code of the tool.
// The argument before holds the number of each service's run before the command was sent. If before is set, a restart or an end
// before the wait also counts. If before is nil, only changes during the wait count.
func (c *Call) waitFor(dirs []string, until byte, limit time.Duration, all bool, before map[string]uint64) int {
	ctx, cancel := context.WithCancel(context.Background()) // no signal handler: a signal ends this tool like any other program
	defer cancel()
	if limit > 0 {
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	for _, dir := range dirs { // like s6, check all services before the first wait
		if _, err := c.slot(ctx, dir); err != nil {
			return c.notWaitable(ctx, dir, err)
		}
	}
	type result struct {
		dir string
		err error
	}
	// The channel has room for all results, because this function may return before it has read all of them.
	results := make(chan result, len(dirs))
	for _, dir := range dirs {
		goal := string(until)
		if run, known := before[dir]; known {
			goal += strconv.FormatUint(run, 10)
		}
		go func() { results <- result{dir, c.waitOne(ctx, dir, goal)} }()
	}
	failed := exitDone
	for range dirs {
		r := <-results
		switch {
		case r.err == nil && !all:
			return exitDone
		case r.err == nil:
		case kindOf(r.err) == client.KindPermanent:
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

// waitOne waits until one service is in the state until. It treats a removed service as down.
func (c *Call) waitOne(ctx context.Context, dir, until string) error {
	init, path, err := c.connect(dir)
	if err != nil {
		return err
	}
	_, err = init.SlotWait(ctx, path, until)
	switch {
	case err == nil, kindOf(err) == client.KindPermanent:
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, client.ErrUnknown) && (until[0] == 'd' || until[0] == 'D'):
		return nil
	}
	return s6Error(dir, err)
}
