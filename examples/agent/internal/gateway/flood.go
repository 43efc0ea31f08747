package gateway

import (
	"fmt"
	"os"
	"strings"
	"time"

	"hinit/examples/agent/internal/knobs"
)

// floodStopTimeout is how long stop waits for a flood that is stuck in a full pipe.
const floodStopTimeout = time.Second

// outputFlood is a goroutine that prints numbered lines. A nil flood prints nothing.
type outputFlood struct{ quit, done chan struct{} }

// startFlood starts a flood of rate lines a second. knobs.FloodMax means no pause, and 0 means no flood. Each line has size
// bytes with its newline, and is one write. The flood ends after total lines (0: never), or when it is stopped.
func startFlood(out *os.File, rate, size, total int) *outputFlood {
	if rate == 0 {
		return nil
	}
	f := &outputFlood{make(chan struct{}), make(chan struct{})}
	go func() {
		defer close(f.done)
		f.run(out, rate, size, total)
	}()
	return f
}

func (f *outputFlood) run(out *os.File, rate, size, total int) {
	start := time.Now()
	for n := 1; total == 0 || n <= total; n++ {
		var pause time.Duration
		if rate != knobs.FloodMax {
			pause = time.Until(start.Add(time.Duration(n) * time.Second / time.Duration(rate)))
		}
		if f.quitWithin(pause) {
			return
		}
		if _, err := out.WriteString(floodLine(n, size)); err != nil {
			return
		}
	}
}

// quitWithin waits for d, and reports whether the flood was stopped during that time. If d is 0 or less, it doesn't wait.
func (f *outputFlood) quitWithin(d time.Duration) bool {
	if d <= 0 {
		select {
		case <-f.quit:
			return true
		default:
			return false
		}
	}
	select {
	case <-f.quit:
		return true
	case <-time.After(d):
		return false
	}
}

func floodLine(n, size int) string {
	line := fmt.Sprintf("flood %09d ", n)
	return line + strings.Repeat("x", max(0, size-len(line)-1)) + "\n"
}

func (f *outputFlood) stop() {
	if f == nil {
		return
	}
	close(f.quit)
	select {
	case <-f.done:
	case <-time.After(floodStopTimeout):
	}
}
