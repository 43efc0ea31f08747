package gateway

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"hinit/examples/agent/internal/record"
)

// Exit codes of a gateway (contract, section 8).
const (
	exitPlanned    = 0
	exitUnexpected = 1
	exitRestart    = 75 // the supervisor should start it again at once
	// ExitConfig: do not start it again before its configuration has changed.
	ExitConfig = 78
)

// A cause is why a running gateway ends, and everything that follows from it.
type cause struct {
	reason  string // for the log and the ledger
	code    int
	state   string      // gateway_state left in the file
	restart bool        // the gateway itself asks to be started again
	sig     unix.Signal // what a supervisor or a user sent, if anything
	abrupt  bool        // end where it stands: no drain, no file touched
	kill    unix.Signal // with abrupt: die by this signal instead of exiting
}

// unexpected: no order to be down was given, so it is to be up again.
func (c cause) unexpected() bool { return c.state == record.Up }

// classify says what a signal means. A SIGTERM alone is unexpected: somebody stopped the container, not this gateway,
// and it must be up again afterwards. A marker that names this process makes the same signal a planned stop or
// a handover (contract, sections 6 and 8).
func (g *gateway) classify(sig os.Signal) cause {
	switch sig {
	case unix.SIGINT:
		return cause{reason: "interrupt", state: record.Stopped, sig: unix.SIGINT}
	case unix.SIGUSR1:
		return cause{reason: "restart requested (SIGUSR1)", code: exitRestart, state: record.Stopped, restart: true}
	}
	if record.Takeover.Consume(g.Home.Dir, g.self) {
		return cause{reason: "replaced by another instance", code: exitPlanned, state: record.Stopped, sig: unix.SIGTERM}
	}
	if record.PlannedStop.Consume(g.Home.Dir, g.self) {
		return cause{reason: "planned stop", code: exitPlanned, state: record.Stopped, sig: unix.SIGTERM}
	}
	return cause{reason: "unexpected SIGTERM", code: exitUnexpected, state: record.Up, sig: unix.SIGTERM}
}

// exitNow is the cause of a gateway told to exit with a code of its own choice.
func exitNow(code int) cause {
	c := cause{reason: fmt.Sprintf("told to exit with code %d", code), code: code, state: record.StartupFailed}
	switch code {
	case exitPlanned:
		c.state = record.Stopped
	case exitRestart:
		c.state, c.restart = record.Stopped, true
	case ExitConfig:
		c.reason = "fatal configuration error (on demand)"
	}
	return c
}
