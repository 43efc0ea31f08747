// Package agentcli carries out the agent's own gateway commands instead of the agent: `hermes gateway start|stop|restart|status`,
// and, if profiles have their own users, `hermes profile list`. The exec shim passes these commands to it (ADR 0018).
//
// It prints the same texts and returns the same exit codes as the agent. Unlike the agent, it waits until start, stop and restart
// have taken effect, and reports faults. If it does not fully understand a command, it changes nothing and passes the command to
// the agent's own program.
//
// A command for all gateways uses one goroutine for each gateway, which ends with the command.
package agentcli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/cmdline"
	"hinit/internal/fsutil"
	"hinit/internal/proc"
	"hinit/profiles"
	"hinit/profiles/manage"
	"hinit/shim/agentuser"
	"hinit/shim/lifecycle"
)

// Other exit codes that the agent's commands also use. A shell uses the last two if it can't run a program.
const (
	exitUsage      = 100
	exitCannotExec = 126
	exitNotFound   = 127
)

// Supervisor is the part of PID 1 that the commands use. [dial.Client] implements it.
type Supervisor interface {
	Status(ctx context.Context, names ...string) (client.Status, error)
	Order(ctx context.Context, verb client.Verb, name string, wait client.WaitOptions) (client.Service, error)
}

// Call is one command line of the agent's program that the shim has passed on.
type Call struct {
	Args     []string // path of the agent's own program, then its arguments
	Env      []string // environment, as NAME=VALUE
	Out, Err io.Writer
	// Dial connects to PID 1.
	Dial func() (Supervisor, error)
	// ListProfiles prints all profiles as `hinit profile list` does, and returns an exit code.
	ListProfiles func() int
	// RootPrefix is a prefix for the paths of files in the image. Only tests set it.
	RootPrefix string
}

// Main carries out the command and returns the exit code. If hinit does not handle the command, Main changes nothing, and
// replaces this process by the agent's own program.
func (c *Call) Main() int {
	c.Out, c.Err = cmdline.EscapedWriter{Writer: c.Out}, cmdline.EscapedWriter{Writer: c.Err} // some texts come from other profiles and may contain control characters
	if len(c.Args) == 0 {
		fmt.Fprintf(c.Err, "%s: usage: %s agent [ -p profile ] gateway start|stop|restart|status [ --all ]\n", agentuser.NativeArgv0, agentuser.NativeArgv0)
		return exitUsage
	}
	if lifecycle.ListsProfiles(c.Args[1:]) {
		if c.hasInaccessibleHomes() {
			return c.ListProfiles()
		}
		return c.execAgent()
	}
	code, err := c.gatewayCommand(c.Args[1:])
	switch {
	case err == nil:
		return code
	case isDir(c.RootPrefix+s6BaseDir) || !lifecycle.ChangesGateways(c.Args[1:]):
		return c.execAgent()
	}
	// Don't pass the command to the agent: without s6, it would do nothing and report success, or wait for ever.
	return c.printError("✗ cannot do `%s`: %s\n  see: hinit status", strings.Join(append([]string{filepath.Base(c.Args[0])}, c.Args[1:]...), " "), indentedReason(err))
}

// s6BaseDir exists only if PID 1 emulates s6. Only then can the agent's own program do its work through s6.
const s6BaseDir = "/run/s6/basedir"

// execAgent replaces this process by the agent's own program. It returns an exit code only if that fails.
func (c *Call) execAgent() int {
	err := syscall.Exec(c.Args[0], c.Args, c.Env)
	code := exitCannotExec
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) {
		code = exitNotFound
	}
	fmt.Fprintf(c.Err, "hermes-shim: cannot execute %s: %v\n", c.Args[0], err)
	return code
}

// hasInaccessibleHomes reports whether some profiles have their own users, whose homes this user may not enter because it is not
// root. The agent's own program could not list these profiles.
func (c *Call) hasInaccessibleHomes() bool {
	init, err := c.Dial()
	if err != nil || os.Geteuid() == 0 {
		return false
	}
	st, err := init.Status(context.Background())
	return err == nil && slices.ContainsFunc(st.Services, client.Service.HasOwnUser)
}

// gatewayCommand carries out a gateway command and returns its exit code. An error says why hinit does not handle the command. In
// this case nothing was changed, so the agent's own program may carry out the command.
func (c *Call) gatewayCommand(words []string) (int, error) {
	cmd, ok := lifecycle.Parse(words)
	if !ok {
		return 0, fmt.Errorf("hinit takes start, stop, restart and status, each with one -p NAME or none, and stop and restart with --all")
	}
	if inside := proc.Getenv(c.Env, "_HERMES_GATEWAY"); inside == "1" && (cmd.Verb == "stop" || cmd.Verb == "restart") {
		return c.printError("✗ refusing to %s the gateway from inside a gateway: it would end the command too. Ask from another shell.", cmd.Verb), nil
	}
	root, profile, err := c.resolveProfile(cmd.Profile)
	if err != nil {
		return 0, err
	}
	if profile == "" { // the command names a profile that does not exist
		fmt.Fprintf(c.Err, "Error: Profile '%s' does not exist. Create it with: hermes profile create %s\n", cmd.Profile, cmd.Profile)
		return cmdline.ExitFailed, nil
	}
	init, err := c.Dial()
	if err != nil {
		return 0, err
	}
	ctx := context.Background()
	st, err := init.Status(ctx)
	switch {
	case err != nil:
		return 0, err
	case st.Init.Home != root:
		return 0, fmt.Errorf("hinit runs the gateways of %s, and HERMES_HOME means %s", st.Init.Home, root)
	case st.Init.Stopping:
		return 0, fmt.Errorf("the container is stopping")
	}
	if cmd.All {
		c.orderAllGateways(ctx, init, st, cmd.Verb)
		return cmdline.ExitDone, nil // the failures were printed; return success as the agent does
	}
	return c.orderGateway(ctx, init, st, cmd.Verb, profile, cmd.Force)
}

// resolveProfile returns the agent's home, and the profile for which a command is. named is the profile in the command, or "". If
// it is "", the command is for the profile whose home is HERMES_HOME. If HERMES_HOME is the agent's home, it is for the active
// profile, see activeProfile. If the named profile does not exist, profile is "".
func (c *Call) resolveProfile(named string) (root, profile string, err error) {
	home := proc.Getenv(c.Env, "HERMES_HOME")
	if !filepath.IsAbs(home) {
		return "", "", fmt.Errorf("HERMES_HOME is %q, which is no absolute path", home)
	}
	root = filepath.Clean(home)
	if parent := filepath.Dir(root); filepath.Base(parent) == "profiles" {
		profile, root = filepath.Base(root), filepath.Dir(parent)
	}
	switch {
	case named != "":
		profile = profiles.Normalize(named)
	case profile == "":
		if profile, err = c.activeProfile(root); err != nil {
			return "", "", fmt.Errorf("cannot tell which profile is chosen: %w", err)
		}
	}
	err = manage.ValidName(profile)
	switch {
	case profile == profiles.Default, err == nil && isDir(filepath.Join(root, "profiles", profile)):
		return root, profile, nil
	case named == "":
		return "", "", fmt.Errorf("there is no profile %q, which HERMES_HOME or `%s profile use` has chosen", profile, filepath.Base(c.Args[0]))
	case err != nil:
		return "", "", fmt.Errorf("%q is no profile: %w", named, err)
	}
	return root, "", nil
}

// activeProfile returns the profile that `hermes profile use` has chosen, or the default profile if none was chosen. In a
// supervised gateway it always returns the default profile, as the agent does. The agent can replace the file active_profile, and
// this process may be root. So if the path is not a readable regular file, activeProfile returns an error, and the agent's own
// program handles the command.
func (c *Call) activeProfile(root string) (string, error) {
	for _, name := range []string{"HERMES_S6_SUPERVISED_CHILD", "HERMES_SUPERVISED_CHILD"} {
		if proc.Getenv(c.Env, name) != "" {
			return profiles.Default, nil
		}
	}
	home, err := fsutil.OpenDir(root, nil)
	if err != nil {
		return "", err
	}
	defer home.Close()
	return profiles.ActiveIn(home)
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// printError prints an error message to stdout, where the agent also prints its errors. It returns cmdline.Failed.
func (c *Call) printError(format string, args ...any) int {
	fmt.Fprintf(c.Out, format+"\n", args...)
	return cmdline.ExitFailed
}

// orderGateway starts, stops or restarts the gateway of one profile, and prints the result. It returns the exit code, or an error
// with the same meaning as in gateway.
func (c *Call) orderGateway(ctx context.Context, init Supervisor, st client.Status, verb, profile string, force bool) (int, error) {
	slot := profiles.SlotName(profile)
	if verb == "status" {
		s := st.Find(slot)
		if s == nil || s.PID == 0 && c.mayRunUnsupervised(st.Init.Home, profile) {
			return 0, fmt.Errorf("hinit does not run it")
		}
		c.printGateway(st, *s)
		return cmdline.ExitDone, nil
	}
	known := st.Find(slot) != nil
	_, err := init.Order(ctx, client.Verb(verb), slot, client.WaitOptions{Wait: true, Force: force})
	switch {
	case err == nil:
		if !known && verb == "start" { // the profile has a home, so hinit finds it and starts its gateway
			fmt.Fprintf(c.Out, "✓ registered the s6 gateway slot for profile '%s'\n", profile)
		}
		return cmdline.ExitDone, nil
	case errors.Is(err, client.ErrUnknown):
		return c.printError("✗ no such gateway '%s': register it with `hermes profile create %s` first, or pass an existing profile name via `-p <name>`", profile, profile), nil
	case errors.Is(err, client.ErrNotAllowed), errors.Is(err, client.ErrUnreachable):
		return 0, err // nothing was changed, so the agent's program may handle the command
	}
	return c.printError("✗ cannot %s the gateway of profile '%s': %s\n  see: hinit status %s; hinit logs %s", verb, profile, indentedReason(err), profile, profile), nil
}

// gatewaysOf returns the gateways in a status.
func gatewaysOf(st client.Status) []client.Service {
	return slices.DeleteFunc(slices.Clone(st.Services), func(s client.Service) bool { return s.Kind != client.KindGateway })
}

// orderAllGateways stops all gateways, or restarts all gateways that should be running. It handles them in parallel, and prints each
// result.
func (c *Call) orderAllGateways(ctx context.Context, init Supervisor, st client.Status, verb string) {
	registered := gatewaysOf(st)
	if len(registered) == 0 {
		c.printError("✗ No profile gateways registered under s6")
		return
	}
	var slots []string
	for _, s := range registered {
		if verb == "stop" || s.Want == client.WantUp {
			slots = append(slots, s.Name)
		}
	}
	slices.Sort(slots)
	_, results := dial.OrderAll(slots, func(slot string) (client.Service, error) {
		return init.Order(ctx, client.Verb(verb), slot, client.WaitOptions{Wait: true})
	})
	done := 0
	for i, err := range results {
		if err != nil {
			c.printError("✗ Could not %s %s: %s", verb, slots[i], indentedReason(err))
		} else {
			done++
		}
	}
	past := map[string]string{"stop": "Stopped", "restart": "Restarted"}[verb]
	if done > 0 || len(slots) == 0 {
		fmt.Fprintf(c.Out, "✓ %s %d profile gateway(s) under s6\n", past, done)
	}
}

// indentedReason returns the reason of an error from PID 1, without the failed action. It indents all lines but the first.
func indentedReason(err error) string {
	return strings.ReplaceAll(strings.TrimSpace(dial.WithoutAction(err).Error()), "\n", "\n  ")
}

// mayRunUnsupervised reports whether the profile has the pid file of a gateway. A gateway without supervision may then be
// running.
func (c *Call) mayRunUnsupervised(root, profile string) bool {
	home := root
	if profile != profiles.Default {
		home = filepath.Join(root, "profiles", profile)
	}
	_, err := os.Lstat(filepath.Join(home, "gateway.pid"))
	return err == nil
}

// printGateway prints the state of a gateway, for the command status.
func (c *Call) printGateway(st client.Status, s client.Service) {
	if s.PID != 0 {
		fmt.Fprintf(c.Out, "✓ Gateway is running (PID: %d)\n", s.PID)
	} else {
		fmt.Fprintln(c.Out, "✗ Gateway is not running")
	}
	fmt.Fprintln(c.Out, "  Manager: s6 (container supervisor)")
	if s.PID == 0 && s.Want == client.WantDown {
		fmt.Fprintln(c.Out, "  Service: installed but stopped")
	}
	fmt.Fprintf(c.Out, "  State: %s\n", stateOf(s))
	if s.ServedBy != "" {
		fmt.Fprintf(c.Out, "  Served by: %s\n", s.ServedBy)
	}
	others := slices.DeleteFunc(gatewaysOf(st), func(o client.Service) bool { return o.Name == s.Name })
	if len(others) == 0 {
		return
	}
	slices.SortStableFunc(others, func(a, b client.Service) int { return profiles.Compare(a.Profile, b.Profile) })
	fmt.Fprintln(c.Out, "\nOther profiles:")
	for _, o := range others {
		switch {
		case o.PID != 0:
			fmt.Fprintf(c.Out, "  ✓ %s (PID: %d)\n", o.Profile, o.PID)
		case o.ServedBy == client.ServedByDefault:
			fmt.Fprintf(c.Out, "  ✓ %s (served by %s)\n", o.Profile, profiles.Default)
		default:
			fmt.Fprintf(c.Out, "  ✗ %s\n", o.Profile)
		}
	}
}

// stateOf describes the state of a gateway. If the gateway is wanted up but is not up, it adds the reason.
func stateOf(s client.Service) string {
	text := s.State
	if s.State == client.StateUp && !s.Ready {
		text += " (not ready)"
	}
	if s.CrashLoop {
		text += " (crash-loop)"
	}
	if !s.Since.IsZero() {
		text += " for " + max(time.Since(s.Since), 0).Truncate(time.Second).String()
	}
	if s.Want == client.WantUp && s.State != client.StateUp && s.Reason != "" {
		reason, _, _ := strings.Cut(s.Reason, "\n")
		text += ": " + reason
	}
	return text
}
