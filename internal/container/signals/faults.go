package signals

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/pause"
	"hinit/internal/proc"
)

// tellPause is how long a second report of ignored signals comes after a first, however many come meanwhile.
const tellPause = 10 * time.Second

// TellFaults reports the signals that a process sent as if this one had a fault, and that PID 1 ignored. It returns when ctx ends.
func (s *Signals) TellFaults(ctx context.Context, tell func(text string)) {
	told := make(map[syscall.Signal]uint64)
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.faults:
		}
		if text := faultsText(proc.SentFaults(), told); text != "" {
			tell(text)
		}
		if !pause.For(ctx, tellPause) {
			return
		}
	}
}

// faultsText describes what has come since it was told, and notes it as told.
func faultsText(faults []proc.SentFault, told map[syscall.Signal]uint64) string {
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
