// Package gateway is the long-running part of the agent: the process that a supervisor keeps alive, one for each profile. It
// has the same state file, lock, pid file, signals and exit codes as a gateway of the Hermes agent.
//
// One goroutine, the caller's, decides everything. The package also owns goroutines for the flood of lines and the health
// server, if these are wanted. Both end with the gateway.
package gateway

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"hinit/examples/agent/internal/home"
	"hinit/examples/agent/internal/knobs"
	"hinit/examples/agent/internal/record"
)

// pollInterval is how often the gateway checks for the marker of a planned stop, which may come without a signal.
const pollInterval = time.Second

// Config holds the settings of one run of a gateway.
type Config struct {
	Home    home.Home
	Version string
	Replace bool // Take over from a gateway that is already running.
	Force   bool // Start even if the pid file has the pid of a living process, as long as the lock is free.
	Knobs   knobs.Knobs
	Getenv  func(string) string
	Stdout  *os.File
	Stderr  io.Writer
}

type gateway struct {
	Config
	log             logger
	self            record.Identity
	signals         chan os.Signal
	ledger          *record.ExitLedger
	lock            *os.File
	flood           *outputFlood
	health          *healthServer
	allocatedMemory []byte // Memory that the gateway allocates if the knob oom is set.
}

// Run runs a gateway. It blocks until the gateway ends and returns the exit code. It installs the signal handlers first,
// unless the knob late_handlers delays them.
func Run(config Config) int {
	g := &gateway{Config: config, log: logger{config.Stdout, config.Stderr}, signals: make(chan os.Signal, 8)}
	if late := g.Knobs.SignalHandlerDelay; late > 0 {
		<-time.After(late)
	}
	// Never remove the handlers, because a late signal must not change the exit code.
	signal.Notify(g.signals, unix.SIGTERM, unix.SIGINT, unix.SIGUSR1, unix.SIGUSR2)
	g.self = record.CurrentProcess()

	if err := os.MkdirAll(g.Home.Dir, 0o755); err != nil {
		g.log.warn("cannot make the home directory: %v", err)
		return exitUnexpected
	}
	if g.Home.Profile != home.DefaultProfile && !g.Force && g.multiplexed() && slices.Contains(g.servedProfiles(), g.Home.Profile) {
		fmt.Fprintf(g.Stderr, "The default profile's gateway serves profile '%s' (multiplex_profiles). Use --force to run another one beside it.\n", g.Home.Profile)
		return exitUnexpected
	}
	stopped, err := g.acquire()
	if err != nil {
		g.explainRefusal(err)
		return exitUnexpected
	}
	if stopped != nil {
		return stopped.code
	}
	defer g.lock.Close()
	return g.finish(g.runUntilEnd())
}

func (g *gateway) explainRefusal(err error) {
	if another := (*alreadyRunningError)(nil); errors.As(err, &another) {
		fmt.Fprintln(g.Stderr, err)
		return
	}
	g.log.warn("cannot start: %v", err)
}

// runUntilEnd changes the gateway from "starting" to "running", serves, and returns why the gateway ends.
func (g *gateway) runUntilEnd() endCause {
	ledger, unclean, err := record.OpenLedger(g.Home.Dir)
	g.ledger = ledger
	g.warnOnError(err)
	if unclean {
		g.log.warn("the previous gateway of this home did not end in good order")
	}
	g.clearLeftovers()
	misbehave := g.shouldCrash()

	g.updateState(map[string]any{
		"pid": g.self.PID, "kind": g.self.Kind, "argv": g.self.Argv, "start_time": g.self.StartTime,
		"gateway_state": record.StateStarting, "exit_reason": nil, "restart_requested": false,
		"active_agents": 0, "platforms": map[string]any{}, "served_profiles": nil,
	})
	g.log.banner(g.Home.Profile, g.self.PID)
	if misbehave && g.Knobs.ExitAtOnceCode != knobs.NoExit {
		return exitNow(g.Knobs.ExitAtOnceCode)
	}
	burnCPU(g.Knobs.StartCPUTime)
	if c := g.wait(g.Knobs.StartupDelay); c != nil {
		return *c
	}
	g.health = startHealth(g.Config, g.log)
	up := map[string]any{"gateway_state": record.StateRunning}
	if len(g.Knobs.StatePlatforms) > 0 {
		up["platforms"] = g.Knobs.StatePlatforms
	}
	if g.Home.Profile == home.DefaultProfile && g.multiplexed() {
		up["served_profiles"] = g.servedProfiles()
	}
	g.updateState(up)
	g.log.info("gateway of profile %s is running", g.Home.Profile)
	g.misbehaveWhenRunning()
	return g.serve(misbehave)
}

// clearLeftovers removes the files in which the previous gateway has recorded how it ended.
func (g *gateway) clearLeftovers() {
	for _, name := range []string{cleanShutdownFile, restartPendingFile} {
		if err := os.Remove(filepath.Join(g.Home.Dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			g.log.warn("cannot remove %s: %v", name, err)
		}
	}
}

// burnCPU uses d of processor time, which takes longer than d on a busy machine.
func burnCPU(d time.Duration) {
	var used unix.Rusage
	for unix.Getrusage(unix.RUSAGE_SELF, &used) == nil && time.Duration(used.Utime.Nano()+used.Stime.Nano()) < d {
	}
}

// serve is the main loop: it waits for an event that ends the gateway.
func (g *gateway) serve(misbehave bool) endCause {
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	heartbeat, beat := tickOrNever(g.Knobs.HeartbeatInterval), tickOrNever(g.Knobs.StateWriteInterval)
	var crash, die <-chan time.Time
	if misbehave {
		crash, die = afterOrNever(g.Knobs.CrashAfter), afterOrNever(g.Knobs.SignalAfter)
	}
	for {
		select {
		case sig := <-g.signals:
			if c := g.handleSignal(sig); c != nil {
				return *c
			}
		case <-poll.C:
			if c := g.pollMarker(); c != nil {
				return *c
			}
		case <-heartbeat:
			g.log.info("heartbeat of profile %s", g.Home.Profile)
		case <-beat:
			g.updateState(nil)
		case <-crash:
			return endCause{reason: "crash on demand", code: g.Knobs.CrashCode, abrupt: true}
		case <-die:
			return endCause{reason: "signal on demand", code: exitUnexpected, abrupt: true, killSignal: g.Knobs.Signal}
		}
	}
}

// wait waits for d while the gateway starts. If the gateway must end during that time, wait returns
// the cause at once.
func (g *gateway) wait(d time.Duration) *endCause {
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	over := time.After(d)
	for {
		select {
		case <-over:
			return nil
		case sig := <-g.signals:
			if c := g.handleSignal(sig); c != nil {
				return c
			}
		case <-poll.C:
			if c := g.pollMarker(); c != nil {
				return c
			}
		}
	}
}

func (g *gateway) handleSignal(sig os.Signal) *endCause {
	if sig == unix.SIGUSR2 {
		g.health.hang()
		select {} // SIGUSR2 makes the gateway hang: it lives, but does nothing.
	}
	if sig == unix.SIGTERM && g.Knobs.IgnoreTerm {
		g.log.warn("SIGTERM ignored, as told")
		return nil
	}
	c := g.classify(sig)
	return &c
}

func (g *gateway) pollMarker() *endCause {
	if g.Knobs.IgnoreTerm || !record.PlannedStopMarker.Consume(g.Home.Dir, g.self) {
		return nil
	}
	return &endCause{reason: "planned stop", code: exitPlanned, state: record.StateStopped}
}

// updateState writes the state file. If that fails, the gateway continues to work.
func (g *gateway) updateState(fields map[string]any) {
	g.warnOnError(record.UpdateState(g.Home.Dir, fields))
}

func (g *gateway) warnOnError(err error) {
	if err != nil {
		g.log.warn("%v", err)
	}
}

// afterOrNever is like time.After, but for a duration of 0 the channel never receives.
func afterOrNever(d time.Duration) <-chan time.Time {
	if d == 0 {
		return nil
	}
	return time.After(d)
}

// tickOrNever is like time.Tick, but for a duration of 0 the channel never receives.
func tickOrNever(d time.Duration) <-chan time.Time {
	if d == 0 {
		return nil
	}
	return time.Tick(d)
}
