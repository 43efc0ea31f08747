package gateway

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"hinit/examples/agent/internal/helper"
	"hinit/examples/agent/internal/record"
)

// Files in the home that tell the next gateway how this one ended.
const (
	cleanShutdown  = ".clean_shutdown"
	restartPending = ".restart_pending.json"
)

// diagLife is the lifetime of the diagnostic helper process that a shutdown starts. It is the same as in the real agent.
const diagLife = 5 * time.Second

// finish ends the gateway as its cause demands and returns the exit code. Signals that come later have no effect.
func (g *gateway) finish(c cause) int {
	if c.abrupt {
		g.stopOutput()
		if c.kill != 0 {
			g.check(dieBy(c.kill))
		}
		return c.code
	}
	g.log.info("shutting down: %s", c.reason)
	if g.Knobs.SpawnDiag && (c.sig == unix.SIGTERM || c.sig == unix.SIGINT) {
		g.check(helper.Sleeper{For: diagLife, Setsid: true, ClosesOutput: true}.Start())
	}
	if c.state != record.StartupFailed {
		g.updateState(map[string]any{"gateway_state": record.Draining})
		<-time.After(g.Knobs.Drain)
	}
	g.health.close()
	g.leaveNotes(c)
	g.updateState(finalState(c))
	g.check(g.ledger.Close(c.code, c.reason))
	g.check(record.RemovePID(g.Home.Dir, g.self.PID))
	g.log.info("gateway of profile %s ended with code %d", g.Home.Profile, c.code)
	g.stopOutput()
	return c.code
}

func finalState(c cause) map[string]any {
	fields := map[string]any{"gateway_state": c.state, "restart_requested": c.restart}
	if c.restart || c.state == record.StartupFailed {
		fields["exit_reason"] = c.reason
	}
	return fields
}

func (g *gateway) leaveNotes(c cause) {
	switch {
	case c.unexpected():
		g.check(writeNote(g.Home.Dir, cleanShutdown, nil))
	case c.restart:
		note, err := json.Marshal(map[string]any{"pid": g.self.PID, "requested_at": record.Timestamp(time.Now())})
		g.check(err)
		g.check(writeNote(g.Home.Dir, restartPending, note))
	}
}

func writeNote(dir, name string, content []byte) error {
	if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
		return fmt.Errorf("cannot leave %s: %w", name, err)
	}
	return nil
}

// stopOutput stops all output. With the knob half_line, the last line that it prints has no newline.
func (g *gateway) stopOutput() {
	g.flood.stop()
	if g.Knobs.HalfLine {
		_, _ = g.Stdout.WriteString("this line has no end")
	}
}
