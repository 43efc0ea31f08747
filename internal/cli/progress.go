package cli

import (
	"fmt"
	"time"
)

const (
	progressAfter = 300 * time.Millisecond // what is over before that needs no line
	progressEvery = 100 * time.Millisecond
)

// progress draws a line such as "starting, 1.4 s" while something takes its time, if there is a terminal to draw it on. The
// returned function ends that, and wipes the line. Call it before you print anything else. A goroutine draws until then.
func (t *Terminal) progress(doing string, since time.Time) (end func()) {
	if t.notes == nil {
		return func() {}
	}
	over, wiped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(wiped)
		timer := time.NewTimer(max(progressAfter-time.Since(since), 0))
		defer timer.Stop()
		for drawn := false; ; drawn = true {
			select {
			case <-timer.C:
				fmt.Fprintf(t.notes, "\r%s, %.1f s\x1b[K", doing, time.Since(since).Seconds())
				timer.Reset(progressEvery)
			case <-over:
				if drawn {
					fmt.Fprint(t.notes, "\r\x1b[K")
				}
				return
			}
		}
	}()
	return func() {
		close(over)
		<-wiped
	}
}
