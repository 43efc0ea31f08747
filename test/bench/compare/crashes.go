package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// upTime is how long a service runs before the kill or stop. It is longer than the restart delay of
// s6 and runit.
const upTime = 1200 * time.Millisecond

// healthyLife is how long a service runs so that its next crash counts as the first. It is longer
// than hinit's reset_after.
const healthyLife = 62 * time.Second

// measureCrashes measures M3: the time from the kill of a service until it is started again. It does so with the shortest delay that
// each candidate allows, and with its default for the first crash after a healthy life.
func (b *bench) measureCrashes() error {
	if err := b.measureCrashesAt("restart", true, upTime, b.runs+2); err != nil || b.quick {
		return err
	}
	return b.measureCrashesAt(asDelivered, false, healthyLife, 1)
}

func (b *bench) measureCrashesAt(at string, fast bool, life time.Duration, rounds int) error {
	g, err := startCandidates(b, "M3", candidatesOf[supervisor](b), 1, fast)
	defer g.kill()
	if err != nil {
		return err
	}
	for range rounds {
		<-time.After(life)
		if err := g.each(func(i *instance) error {
			begin := time.Now()
			if err := unix.Kill(i.last.pid, unix.SIGKILL); err != nil {
				return err
			}
			if i.last, err = i.watch.next(1, i); err != nil {
				return err
			}
			b.figures.add("M3", at, i.peer.name(), ms(i.last.at.Sub(begin)))
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}
