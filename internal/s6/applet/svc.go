package applet

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/s6/formats"
)

// runSvc sends commands to services. It returns when PID 1 has accepted them, with -w when they have taken effect.
func runSvc(c *Invocation, options []option) int {
	var letters []byte
	var until byte
	var limit time.Duration
	for _, o := range options {
		switch o.letter {
		case 'w':
			if len(o.value) != 1 || !strings.Contains("uUdDrR", o.value) {
				return wrongUsage
			}
			until = o.value[0]
		case 'T':
			var ok bool
			if limit, ok = formats.ParseMilliseconds(o.value); !ok {
				return wrongUsage
			}
		case 's':
			signal, _ := formats.ParseSignal(o.value)
			letter, ok := svcLetter(signal)
			if !ok {
				return wrongUsage
			}
			letters = append(letters, letter)
		default:
			letters = append(letters, o.letter)
		}
	}
	ctx := context.Background() // a signal must end this tool like any other program
	before := make(map[string]uint64)
	// Store the run numbers before the command, so that the end of a run counts even if it precedes the wait.
	if until = c.reachableState(until); strings.IndexByte("dDrR", until) >= 0 {
		for _, dir := range c.Args {
			if s, err := c.slot(ctx, dir); err == nil && (s.Up || until == 'r' || until == 'R') {
				before[dir] = s.RunNumber
			}
		}
	}
	code := exitDone
	for _, dir := range c.Args {
		if err := c.sendLetters(ctx, dir, string(letters)); err != nil {
			c.warn("unable to control " + dir + ": " + strerror(err))
			if code == exitDone {
				code = exitSystemError
				if errors.Is(err, errNotListening) {
					code = exitNotAlive
				}
			}
		}
	}
	if code != exitDone || until == 0 {
		return code
	}
	c.Name = "s6-svlisten"
	if len(letters) == 0 {
		c.Name = "s6-svwait"
	}
	return c.waitForState(c.Args, until, limit, true, before)
}

// reachableState returns the state to wait for. For a service that can't report readiness, it replaces U by u and R by r, as s6
// does.
func (c *Invocation) reachableState(until byte) byte {
	if until != 'U' && until != 'R' {
		return until
	}
	for _, dir := range c.Args {
		if _, err := os.Stat(filepath.Join(dir, "notification-fd")); errors.Is(err, os.ErrNotExist) {
			c.warn(dir + "/notification-fd not present - ignoring request for readiness notification")
			return until + 'a' - 'A'
		}
	}
	return until
}

func (c *Invocation) sendLetters(ctx context.Context, dir, letters string) error {
	init, path, err := c.connect(dir)
	if err != nil {
		return err
	}
	if letters == "" { // without a command, only check that the service is supervised
		_, err := init.Slot(ctx, path)
		return s6Error(dir, err)
	}
	return s6Error(dir, init.SlotControl(ctx, path, letters))
}

// runSvscanctl sends commands to the scanner of the scan directory. If the commands include a scan, the scan is complete when
// runSvscanctl returns.
func runSvscanctl(c *Invocation, options []option) int {
	var letters []byte
	for _, o := range options {
		letters = append(letters, o.letter)
	}
	if err := c.controlScanner(c.Args[0], string(letters)); err != nil {
		code := exitSystemError
		if errors.Is(err, errNotListening) {
			code = exitUsage
		}
		return c.fatal(code, "unable to control "+c.Args[0]+": "+strerror(err))
	}
	return exitDone
}

func (c *Invocation) controlScanner(dir, letters string) error {
	if err := checkDir(dir); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(dir, ".s6-svscan/lock"), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return errNotListening
	}
	if err == nil { // PID 1 decides whether a user without access to the lock may send commands
		defer lock.Close()
		if unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
			return errNotListening // hinit itself holds the lock of its scan directory
		}
	}
	init, err := c.Dial()
	if err != nil {
		return s6Error(dir, err)
	}
	if letters == "" {
		return nil
	}
	return s6Error(dir, init.ControlScanner(context.Background(), letters))
}

// svcLetter returns the command letter of s6-svc that sends the signal number to the main process. If there is none, ok is false.
func svcLetter(number int) (letter byte, ok bool) {
	for _, letter := range []byte(formats.SvcLetters) {
		if n, group := formats.SvcSignal(letter); n == number && n > 0 && !group {
			return letter, true
		}
	}
	return 0, false
}

func runSvwait(c *Invocation, options []option) int {
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
	return c.waitForState(c.Args, until, limit, all, nil)
}

// waitForState waits until all services are in the state until, or any of them if all is false. It returns the exit code. before
// has the number of each service's run before the command: the end of such a run counts even if it precedes the wait. If before
// is nil, only changes during the wait count.
func (c *Invocation) waitForState(dirs []string, until byte, limit time.Duration, all bool, before map[string]uint64) int {
	ctx, cancel := context.WithCancel(context.Background()) // a signal must end this tool like any other program
	defer cancel()
	if limit > 0 {
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	for _, dir := range dirs { // check all services before the first wait, as s6 does
		if _, err := c.slot(ctx, dir); err != nil {
			return c.reportWaitError(ctx, dir, err)
		}
	}
	type result struct {
		dir string
		err error
	}
	results := make(chan result, len(dirs)) // no goroutine may wait, because this function may return first
	for _, dir := range dirs {
		goal := string(until)
		if run, known := before[dir]; known {
			goal += strconv.FormatUint(run, 10)
		}
		go func() { results <- result{dir, c.waitForService(ctx, dir, goal)} }()
	}
	failed := exitDone
	for range dirs {
		r := <-results
		switch {
		case r.err == nil && !all:
			return exitDone
		case r.err == nil:
		case kindOf(r.err) == client.KindPermanent:
			failed = exitFalse
		default:
			return c.reportWaitError(ctx, r.dir, r.err)
		}
	}
	if failed != exitDone {
		return c.fatal(failed, "some services reported permanent failure or their supervisor died")
	}
	return exitDone
}

func (c *Invocation) reportWaitError(ctx context.Context, dir string, err error) int {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return c.fatal(exitTimeout, "timed out")
	case errors.Is(err, errNotListening):
		return c.fatal(exitSystemError, "unable to s6_svstatus_read: No such file or directory")
	}
	return c.fatal(exitSystemError, "unable to subscribe to events for "+dir+": "+strerror(err))
}

// waitForService waits until one service is in the state until. A removed service counts as down.
func (c *Invocation) waitForService(ctx context.Context, dir, until string) error {
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
