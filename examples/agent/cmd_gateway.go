package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"hinit/examples/agent/internal/gateway"
	"hinit/examples/agent/internal/knobs"
	"hinit/examples/agent/internal/record"
)

const gatewayUsage = "gateway [run [--replace] [--force] [--no-supervise] [--late-handlers D] | status | start | stop | restart]"

// cmdGateway implements the command gateway. Without a verb it runs a gateway.
func cmdGateway(c *call) int {
	verb, args := "run", c.args
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		verb, args = args[0], args[1:]
	}
	switch verb {
	case "run":
		return gatewayRun(c, args)
	case "status":
		return gatewayStatus(c)
	case "start", "stop", "restart":
		// Only the supervisor starts and stops gateways. The real agent asks it with the s6 tools; this agent refers people
		// to hinit.
		fmt.Fprintf(c.stderr, "use: hinit %s %s\n", verb, c.home.Profile)
		return exitFailed
	}
	return c.fail(exitUsage, fmt.Errorf("unknown verb '%s'; usage: %s", verb, gatewayUsage))
}

func gatewayStatus(c *call) int {
	if id, alive := record.RunningGateway(c.home.Dir); alive {
		fmt.Fprintf(c.stdout, "✓ Gateway is running (PID: %d)\n", id.PID)
	} else {
		fmt.Fprintln(c.stdout, "✗ Gateway is not running")
	}
	return exitOK
}

func gatewayRun(c *call, args []string) int {
	flags := flag.NewFlagSet("gateway run", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	replace := flags.Bool("replace", false, "")
	force := flags.Bool("force", false, "")
	flags.Bool("no-supervise", false, "") // The flag has no effect, because this agent never asks a supervisor to run it.
	late := flags.Duration("late-handlers", 0, "")
	if err := flags.Parse(args); err != nil {
		return c.fail(exitUsage, err)
	}
	if flags.NArg() > 0 {
		return c.fail(exitUsage, fmt.Errorf("gateway run takes no word '%s'", flags.Arg(0)))
	}
	if err := refuseRoot(os.Geteuid(), "/opt/hermes", os.Getenv); err != nil {
		return c.fail(exitFailed, err)
	}
	settings, err := knobs.Load(os.Getenv, c.home.Dir)
	if err != nil {
		// With this code, a supervisor does not start the gateway again until its configuration has changed.
		return c.fail(gateway.ExitConfig, err)
	}
	if *late > 0 {
		settings.SignalHandlerDelay = *late
	}
	if err := os.Setenv("_HERMES_GATEWAY", "1"); err != nil {
		return c.fail(exitFailed, err)
	}
	return gateway.Run(gateway.Config{
		Home: c.home, Version: agentVersion(), Replace: *replace, Force: *force, Knobs: settings,
		Getenv: os.Getenv, Stdout: c.stdout, Stderr: c.stderr,
	})
}

// refuseRoot returns an error if a gateway in the official image would run as root, because it would create files that the
// agent's user can't read. HERMES_ALLOW_ROOT_GATEWAY permits it.
func refuseRoot(euid int, install string, getenv func(string) string) error {
	if euid != 0 {
		return nil
	}
	if _, err := os.Stat(filepath.Join(install, "docker", "entrypoint.sh")); err != nil {
		return nil
	}
	allow := strings.ToLower(strings.TrimSpace(getenv("HERMES_ALLOW_ROOT_GATEWAY")))
	if slices.Contains([]string{"1", "true", "yes", "on"}, allow) {
		return nil
	}
	return errors.New("refusing to run the gateway as root: use the hermes user, or set HERMES_ALLOW_ROOT_GATEWAY=1")
}
