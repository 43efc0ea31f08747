package container

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/proc"
	"hinit/supervisor"
)

// sentPause is how long a second event about ignored signals comes after a first, however many come meanwhile.
const sentPause = 10 * time.Second

// tellOfSentFaults writes an event about signals that a process sent as if this one had a fault. It returns when ctx ends.
func (c *container) tellOfSentFaults(ctx context.Context) {
	told := make(map[syscall.Signal]uint64)
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.signals.faults:
		}
		if text := sentText(proc.SentFaults(), told); text != "" {
			c.loop.Post(supervisor.Remark{Text: text})
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(sentPause):
		}
	}
}

// sentText describes what has come since it was told, and notes it as told.
func sentText(faults []proc.SentFault, told map[syscall.Signal]uint64) string {
	var what []string
	for _, f := range faults {
		n := f.Count - told[f.Signal]
		if n == 0 {
			continue
		}
		told[f.Signal] = f.Count
		word := fmt.Sprintf("%d %s", n, cmp.Or(unix.SignalName(f.Signal), f.Signal.String()))
		if f.UID >= 0 {
			word += fmt.Sprintf(" (last from pid %d, uid %d)", f.PID, f.UID)
		}
		what = append(what, word)
	}
	if len(what) == 0 {
		return ""
	}
	return "ignored signals that a process sent to hinit: " + strings.Join(what, ", ")
}
