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
	cleanShutdownFile  = ".clean_shutdown"
	restartPendingFile = ".restart_pending.json"
)

// diagnosticLifetime is the lifetime of the diagnostic helper process that a shutdown starts. It is the same as in the real
// agent.
const diagnosticLifetime = 5 * time.Second

// finish ends the gateway as its cause demands and returns the exit code. Signals that come later have no effect.
func (g *gateway) finish(c endCause) int {
	if c.abrupt {
		g.stopOutput()
		if c.killSignal != 0 {
			g.warnOnError(dieBy(c.killSignal))
		}
		return c.code
	}
	g.log.info("shutting down: %s", c.reason)
	if g.Knobs.SpawnDiagnostic && (c.receivedSignal == unix.SIGTERM || c.receivedSignal == unix.SIGINT) {
		g.warnOnError(helper.Sleeper{Lifetime: diagnosticLifetime, Setsid: true, ClosesOutput: true}.Start())
	}
	if c.state != record.StateStartupFailed {
		g.updateState(map[string]any{"gateway_state": record.StateDraining})
		<-time.After(g.Knobs.DrainTime)
	}
	g.health.close()
	g.writeEndNotes(c)
	g.updateState(finalState(c))
	g.warnOnError(g.ledger.Close(c.code, c.reason))
	g.warnOnError(record.RemovePID(g.Home.Dir, g.self.PID))
	g.log.info("gateway of profile %s ended with code %d", g.Home.Profile, c.code)
	g.stopOutput()
	return c.code
}

func finalState(c endCause) map[string]any {
	fields := map[string]any{"gateway_state": c.state, "restart_requested": c.restart}
	if c.restart || c.state == record.StateStartupFailed {
		fields["exit_reason"] = c.reason
	}
	return fields
}

func (g *gateway) writeEndNotes(c endCause) {
	switch {
	case c.unexpected():
		g.warnOnError(writeNote(g.Home.Dir, cleanShutdownFile, nil))
	case c.restart:
		note, err := json.Marshal(map[string]any{"pid": g.self.PID, "requested_at": record.Timestamp(time.Now())})
		g.warnOnError(err)
		g.warnOnError(writeNote(g.Home.Dir, restartPendingFile, note))
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
	if g.Knobs.UnfinishedLine {
		_, _ = g.Stdout.WriteString("this line has no end")
	}
}
