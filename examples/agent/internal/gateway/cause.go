package gateway

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"hinit/examples/agent/internal/record"
)

// Exit codes of a gateway, as in the Hermes agent.
const (
	exitPlanned    = 0
	exitUnexpected = 1
	exitRestart    = 75 // Exit code that asks the supervisor to restart the gateway at once.
	// ExitConfig tells the supervisor not to start the gateway again before its configuration has changed.
	ExitConfig = 78
)

// endCause is the reason why a running gateway ends, with the effects of that reason.
type endCause struct {
	reason         string // Text for the log and the ledger.
	code           int
	state          string      // Final value of gateway_state in the state file.
	restart        bool        // Whether the gateway asks its supervisor for a restart.
	receivedSignal unix.Signal // Signal that a supervisor or a user sent; 0 for none.
	abrupt         bool        // Whether the gateway ends at once, without a drain and without changing files.
	killSignal     unix.Signal // Signal by which an abrupt end kills the process, instead of an exit.
}

// unexpected reports whether the gateway was not ordered to stop, so that the supervisor must start it again.
func (c endCause) unexpected() bool { return c.state == record.StateRunning }

// classify returns the cause for a signal. A SIGTERM without a marker file is unexpected: the container was stopped, and not
// this gateway, so the gateway must run again afterwards. If a marker file names this process, the same signal is a planned
// stop or a takeover.
func (g *gateway) classify(sig os.Signal) endCause {
	switch sig {
	case unix.SIGINT:
		return endCause{reason: "interrupt", state: record.StateStopped, receivedSignal: unix.SIGINT}
	case unix.SIGUSR1:
		return endCause{reason: "restart requested (SIGUSR1)", code: exitRestart, state: record.StateStopped, restart: true}
	}
	if record.TakeoverMarker.Consume(g.Home.Dir, g.self) {
		return endCause{reason: "replaced by another instance", code: exitPlanned, state: record.StateStopped, receivedSignal: unix.SIGTERM}
	}
	if record.PlannedStopMarker.Consume(g.Home.Dir, g.self) {
		return endCause{reason: "planned stop", code: exitPlanned, state: record.StateStopped, receivedSignal: unix.SIGTERM}
	}
	return endCause{reason: "unexpected SIGTERM", code: exitUnexpected, state: record.StateRunning, receivedSignal: unix.SIGTERM}
}

// exitNow returns the cause for a gateway that exits with the code in the knob exit_now.
func exitNow(code int) endCause {
	c := endCause{reason: fmt.Sprintf("told to exit with code %d", code), code: code, state: record.StateStartupFailed}
	switch code {
	case exitPlanned:
		c.state = record.StateStopped
	case exitRestart:
		c.state, c.restart = record.StateStopped, true
	case ExitConfig:
		c.reason = "fatal configuration error (on demand)"
	}
	return c
}
