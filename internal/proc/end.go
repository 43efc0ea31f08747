package proc

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// EndDescendants ends all descendants of this process, in a program without a supervisor. It sends SIGTERM, and SIGKILL half a
// second before the end of the budget. children must deliver SIGCHLD. EndDescendants returns when all descendants have ended,
// or half a second after SIGKILL.
func EndDescendants(children <-chan os.Signal, budget time.Duration) {
	procs, err := New()
	if err != nil {
		return
	}
	const afterKill = 500 * time.Millisecond
	procs.SignalRest(int(unix.SIGTERM))
	end := time.After(max(budget-afterKill, 0))
	for killed := false; !procs.Reap(false, func(Exit) {}); {
		select {
		case <-children:
		case <-end:
			if killed {
				return
			}
			killed = true
			procs.SignalRest(int(unix.SIGKILL))
			end = time.After(afterKill)
		}
	}
}
