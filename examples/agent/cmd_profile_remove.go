package main

import (
	"bufio"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/examples/agent/internal/home"
	"hinit/examples/agent/internal/record"
)

// Times for stopping a gateway before its profile is deleted or renamed, as in the Hermes agent.
const (
	stopGrace = 10 * time.Second // Time from SIGTERM to SIGKILL.
	stopPoll  = 20 * time.Millisecond
)

func profileDelete(c *call, args []string) int {
	yes := func(arg string) bool { return arg == "--yes" || arg == "-y" }
	confirmed := slices.ContainsFunc(args, yes)
	args = slices.DeleteFunc(slices.Clone(args), yes)
	if len(args) != 1 {
		return c.fail(exitUsage, errors.New("usage: profile delete NAME [--yes]"))
	}
	name := home.Normalize(args[0])
	if err := c.checkNamedProfile(name); err != nil {
		return c.fail(exitFailed, err)
	}
	if !confirmed && !c.confirm(fmt.Sprintf("Delete profile '%s' with everything in %s? [y/N] ", name, c.home.ProfileDir(name))) {
		return c.fail(exitFailed, fmt.Errorf("profile '%s' was not deleted; confirm, or pass --yes", name))
	}
	// Remove the profile's marker file first. The supervisor then drops the profile, and does not start the gateway again
	// while the directory is removed.
	if err := c.home.RemoveMarker(name); err != nil {
		return c.fail(exitFailed, err)
	}
	if err := stopGateway(c.home.ProfileDir(name)); err != nil {
		return c.fail(exitFailed, err)
	}
	if err := c.home.Remove(name); err != nil {
		return c.fail(exitFailed, err)
	}
	if c.home.ActiveProfile() == name {
		if err := c.home.SetActiveProfile(home.DefaultProfile); err != nil {
			return c.fail(exitFailed, err)
		}
	}
	fmt.Fprintf(c.stdout, "✓ Deleted profile '%s'\n", name)
	return exitOK
}

func profileRename(c *call, from, to string) int {
	if err := c.checkNamedProfile(from); err != nil {
		return c.fail(exitFailed, err)
	}
	if err := home.CheckName(to); err != nil {
		return c.fail(exitFailed, err)
	}
	if c.home.Exists(to) {
		return c.fail(exitFailed, fmt.Errorf("profile '%s' already exists at %s", to, c.home.ProfileDir(to)))
	}
	if err := stopGateway(c.home.ProfileDir(from)); err != nil {
		return c.fail(exitFailed, err)
	}
	active := c.home.ActiveProfile() == from
	if err := c.home.Rename(from, to); err != nil {
		return c.fail(exitFailed, err)
	}
	if active {
		if err := c.home.SetActiveProfile(to); err != nil {
			return c.fail(exitFailed, err)
		}
	}
	fmt.Fprintf(c.stdout, "✓ Renamed profile '%s' to '%s'\n", from, to)
	return exitOK
}

// checkNamedProfile returns an error unless name is a named profile that exists, because the root profile can't be deleted or
// renamed.
func (c *call) checkNamedProfile(name string) error {
	if err := home.CheckName(name); err != nil {
		return err
	}
	return c.checkProfileExists(name)
}

func (c *call) confirm(question string) bool {
	fmt.Fprint(c.stdout, question)
	reply, _ := bufio.NewReader(c.stdin).ReadString('\n')
	return slices.Contains([]string{"y", "yes"}, strings.ToLower(strings.TrimSpace(reply)))
}

// stopGateway ends the gateway whose pid is in the pid file of a home, if it runs. It first writes the marker of a planned
// stop. Then it sends SIGTERM, and SIGKILL after the grace.
func stopGateway(dir string) error {
	id, alive := record.RunningGateway(dir)
	if !alive {
		return nil
	}
	if err := record.PlannedStopMarker.Write(dir, id); err != nil {
		return err
	}
	if err := id.Signal(unix.SIGTERM); err != nil {
		return err
	}
	if hasEnded(id, stopGrace) {
		return nil
	}
	if err := id.Signal(unix.SIGKILL); err != nil {
		return err
	}
	if !hasEnded(id, stopGrace) {
		return fmt.Errorf("cannot stop the gateway: PID %d is still there after SIGKILL", id.PID)
	}
	return nil
}

func hasEnded(id record.Identity, within time.Duration) bool {
	poll := time.NewTicker(stopPoll)
	defer poll.Stop()
	for deadline := time.Now().Add(within); time.Now().Before(deadline); <-poll.C {
		if !id.Alive() {
			return true
		}
	}
	return !id.Alive()
}
