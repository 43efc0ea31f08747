package cli

import (
	"fmt"
	"time"
)

const (
	progressAfter = 300 * time.Millisecond // shorter work needs no line
	progressEvery = 100 * time.Millisecond
)

// progress shows a line such as "starting, 1.4 s" on the terminal until end is called. doing is the first word of the line. The
// argument since is the moment from which the line counts the time. end removes the line; call it before you print anything else.
// A goroutine draws the line. Without a terminal, progress does nothing.
func (t *Terminal) progress(doing string, since time.Time) (end func()) {
	if t.progressTo == nil {
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
				fmt.Fprintf(t.progressTo, "\r%s, %.1f s\x1b[K", doing, time.Since(since).Seconds())
				timer.Reset(progressEvery)
			case <-over:
				if drawn {
					fmt.Fprint(t.progressTo, "\r\x1b[K")
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
