package gateway

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"hinit/examples/agent/internal/record"
)

// Times of a takeover, as in the Hermes agent. The old gateway gets SIGTERM, and after the time in the knob takeover_grace
// SIGKILL.
const (
	killTimeout  = 5 * time.Second // How long to wait for the old gateway's end after SIGKILL.
	lockTimeout  = 2 * time.Second // How long to wait for the old gateway's lock after that gateway has ended.
	takeoverPoll = 20 * time.Millisecond
)

// alreadyRunningError means that the home already has a gateway.
type alreadyRunningError struct{ pid int }

func (e *alreadyRunningError) Error() string {
	return fmt.Sprintf("Another gateway instance is already running (PID %d).", e.pid)
}

// acquire makes this process the gateway of its home: it takes the lock and writes the pid file. With Replace it first ends
// the home's present gateway. It returns a cause if this process was told to end while it waited.
func (g *gateway) acquire() (*endCause, error) {
	if other, alive := record.RunningGateway(g.Home.Dir); alive && other.PID != g.self.PID && !g.Force {
		if c, err := g.takeOver(other); c != nil || err != nil {
			return c, err
		}
	}
	lock, err := record.LockGateway(g.Home.Dir, g.self)
	if locked := (*record.LockedError)(nil); errors.As(err, &locked) {
		// The other gateway has no usable pid file, because a starting supervisor has removed it, or --force was given.
		if c, err := g.takeOver(locked.Owner); c != nil || err != nil {
			return c, err
		}
		// A gateway that was killed keeps its lock until the last of its threads has ended.
		for deadline := time.Now().Add(lockTimeout); ; {
			lock, err = record.LockGateway(g.Home.Dir, g.self)
			if !errors.As(err, &locked) {
				break
			}
			if time.Now().After(deadline) {
				return nil, &alreadyRunningError{locked.Owner.PID}
			}
			if c := g.wait(takeoverPoll); c != nil {
				return c, nil
			}
		}
	}
	if err != nil {
		return nil, err
	}
	if err := record.WritePID(g.Home.Dir, g.self); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	g.lock = lock
	return nil, nil
}

// takeOver ends the other gateway, or returns an error without Replace. It writes the takeover marker first. The marker tells
// the other gateway and its supervisor that the gateway was replaced and must not be restarted.
func (g *gateway) takeOver(other record.Identity) (*endCause, error) {
	if !g.Replace {
		return nil, &alreadyRunningError{other.PID}
	}
	g.log.info("replacing the gateway with PID %d", other.PID)
	if err := record.TakeoverMarker.Write(g.Home.Dir, other); err != nil {
		g.log.warn("%v", err)
	}
	for _, step := range []struct {
		sig   unix.Signal
		grace time.Duration
	}{{unix.SIGTERM, g.Knobs.TakeoverGrace}, {unix.SIGKILL, killTimeout}} {
		if err := other.Signal(step.sig); err != nil {
			record.TakeoverMarker.Clear(g.Home.Dir)
			return nil, err
		}
		for deadline := time.Now().Add(step.grace); time.Now().Before(deadline); {
			if !other.Alive() {
				record.TakeoverMarker.Clear(g.Home.Dir)
				return nil, nil
			}
			if c := g.wait(takeoverPoll); c != nil {
				return c, nil
			}
		}
		g.log.warn("PID %d is still there %s after %s", other.PID, step.grace, unix.SignalName(step.sig))
	}
	record.TakeoverMarker.Clear(g.Home.Dir)
	return nil, &alreadyRunningError{other.PID}
}
