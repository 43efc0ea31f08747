package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// upTime is how long a service runs before it is killed or stopped: longer than the second that s6 and runit let pass between
// two starts of one service.
const upTime = 1200 * time.Millisecond

// crashes takes M3: from the kill of a service until it is started again, with the shortest delay that each can be given.
func (b *bench) crashes() error {
	g, err := gather(b, "M3", which[supervisor](b), 1, true)
	defer g.kill()
	if err != nil {
		return err
	}
	for range b.runs + 2 {
		<-time.After(upTime)
		if err := g.each(func(i *instance) error {
			begin := time.Now()
			if err := unix.Kill(i.last.pid, unix.SIGKILL); err != nil {
				return err
			}
			if i.last, err = i.watch.next(1, i); err != nil {
				return err
			}
			b.figures.add("M3", "restart", i.peer.name(), ms(i.last.at.Sub(begin)))
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}
