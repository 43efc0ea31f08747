//go:build faults

package container

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"hinit/internal/guard"
)

// injectFaults lets a test cause a panic in PID 1. It waits for the file "panic" beside the control socket, removes the file, and
// panics in the goroutine named in the file: "loop", "scanner" or "goroutine". Only binaries built with the tag faults contain
// it.
func (c *container) injectFaults() {
	order := filepath.Join(os.Getenv("HINIT_RUNTIME_DIR"), "panic")
	go func() {
		for range time.Tick(5 * time.Millisecond) {
			text, err := os.ReadFile(order)
			if err != nil || os.Remove(order) != nil {
				continue
			}
			value := fmt.Sprintf("asked to panic in the %s", strings.TrimSpace(string(text)))
			broken := func() { panic(value) }
			switch strings.TrimSpace(string(text)) {
			case "loop":
				go func() { _ = c.loop.RunInLoop(context.Background(), broken) }()
			case "scanner":
				go c.s6.S6().Panic(value)
			default:
				guard.Go("obeying a test", broken)
			}
		}
	}()
}
