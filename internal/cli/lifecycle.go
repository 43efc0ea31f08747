package cli

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
	"hinit/internal/pause"
	"hinit/internal/varfiles"
)

// LifecycleVerb returns the verb start, stop or restart. args describes the arguments that only this verb has.
func LifecycleVerb(name, args, summary string) Verb {
	return Verb{
		Name: name, Action: name + " a service", Args: "NAME... | --all | --state STATE" + args + " [--no-wait] [--timeout 30s] [--json]",
		Summary: summary, SelectsServices: true,
		Run: runLifecycle,
	}
}

func runLifecycle(t *Terminal, c *Call) int {
	meaning := "every gateway, and every service that hinit.yaml enables or that is wanted up"
	changed, force := new(bool), new(bool)
	if c.Verb.Name == "restart" {
		meaning = "everything that is wanted up"
		changed = c.Flags.Bool("changed", false, "all services that run with an older configuration, or with older files of variables")
	}
	all := c.Flags.Bool("all", false, meaning)
	if c.Verb.Name != "stop" {
		force = c.Flags.Bool("force", false, "run a gateway although the one of the default profile serves its profile")
	}
	noWait := c.Flags.Bool("no-wait", false, "do not wait for the result")
	timeout := c.Flags.Duration("timeout", 0, "how long to wait for the result, as `D` (default 30s; 40s for stop and restart)")
	names, code, ok := c.Parse(t, 0, -1)
	if !ok {
		return code
	}
	switch {
	case *all && *changed:
		return t.Fail(cmdline.ExitUsage, "cannot %s: expected one of: %s", c.Action(), c.Verb.Args)
	case !*all && !*changed && len(names) == 0:
		return t.Fail(cmdline.ExitUsage, "cannot %s: expected: hinit %s %s", c.Action(), c.Verb.Name, c.Verb.Args)
	case *timeout < 0, FlagGiven(c, "timeout") && *timeout == 0:
		return t.Fail(cmdline.ExitUsage, "cannot %s: --timeout must be positive", c.Action())
	}
	ctx, cancel := cmdline.InterruptibleContext()
	defer cancel()
	begin := time.Now()
	patience := cmp.Or(*timeout, BootTimeout)
	cl, err := t.DialDuringStart(ctx, patience)
	if err != nil {
		return t.ReportError(c.Action(), err)
	}
	switch {
	case *all:
		names, err = t.allServices(ctx, cl, c.Verb.Name, patience-time.Since(begin))
	case *changed:
		names, err = t.driftedServices(ctx, cl)
	}
	if err != nil {
		return t.ReportError(c.Action(), err)
	}
	if len(names) == 0 && *changed && !c.JSON {
		fmt.Fprintln(t.Out, "nothing to restart: everything runs as the configuration says")
	}
	wait := client.WaitOptions{Wait: !*noWait, Force: *force}
	if *timeout > 0 {
		wait.Timeout = max(*timeout-time.Since(begin), time.Millisecond)
	}
	return t.Order(ctx, cl, c, c.Verb.Name+" %q", names, wait, begin, func(s client.Service, _ string) int {
		switch {
		case c.JSON:
		case c.Verb.Name != "stop" && s.Done && s.PID == 0: // the task has run and ended in the meantime
			fmt.Fprintln(t.Out, show.TaskResultText(s))
		default:
			fmt.Fprintln(t.Out, show.CommandResultText(s))
		}
		return cmdline.ExitDone
	})
}

// Order sends the order of the call c for all named services at once, prints the results, and returns the exit code. action is
// the failed action in error messages: words that can follow "cannot", with %q for the service. begin is the start time of the
// command. With wait.Wait, Order calls outcome for each service that has carried out the order. outcome gets the new state and
// the action, prints a message for people, and returns an exit code.
func (t *Terminal) Order(ctx context.Context, cl *dial.Client, c *Call, action string, names []string, wait client.WaitOptions, begin time.Time,
	outcome func(s client.Service, doing string) int,
) (worst int) {
	stopped := func() {}
	if wait.Wait {
		stopped = t.showProgress(map[string]string{"start": "starting", "stop": "stopping", "restart": "restarting", "run-once": "running"}[c.Verb.Name], begin)
	}
	states, results := dial.OrderAll(names, func(name string) (client.Service, error) { return cl.Order(ctx, client.Verb(c.Verb.Name), name, wait) })
	stopped()
	for i, s := range states {
		doing := fmt.Sprintf(action, names[i])
		switch {
		case results[i] != nil:
			worst = max(worst, t.ReportError(doing, results[i]))
			continue
		case c.JSON:
			worst = max(worst, t.ReportError(doing, cmdline.WriteJSON(t.Out, s, "")))
		case !wait.Wait:
			fmt.Fprintln(t.Out, show.NoWaitText(s))
		}
		if wait.Wait {
			worst = max(worst, outcome(s, doing))
		}
	}
	return worst
}

// driftedServices returns the services that still run with an older configuration, or with older environment files.
func (t *Terminal) driftedServices(ctx context.Context, cl *dial.Client) (names []string, err error) {
	st, err := cl.Status(ctx)
	if err != nil {
		return nil, err
	}
	cfg, err := t.ConfigOf(st.Init)
	if err != nil {
		return nil, err
	}
	for i := range st.Services {
		if s := &st.Services[i]; s.Drifted || !varfiles.ChangedAt(s, varfiles.Paths(cfg, s, os.Environ())).IsZero() {
			names = append(names, s.Name)
		}
	}
	return names, err
}

// BootTimeout is how long a command waits by default for a hinit that is booting.
const BootTimeout = 30 * time.Second

// allServices returns the services that --all selects, after hinit has read all profiles. If the data volume doesn't answer
// within half of patience, it returns the known services.
func (t *Terminal) allServices(ctx context.Context, cl *dial.Client, verb string, patience time.Duration) (names []string, err error) {
	end := time.Now().Add(patience)
	st, err := cl.Status(ctx)
	for err == nil {
		shortCtx, cancel := context.WithTimeout(ctx, time.Until(end)/2)
		unknown := cl.Rescan(shortCtx) // Rescan returns after the boot, when hinit has read the profiles
		clientErr := (*client.Error)(nil)
		late := shortCtx.Err() != nil || errors.As(unknown, &clientErr) && clientErr.Kind == client.KindTimeout
		cancel()
		wasBooting := st.Init.Booting
		if st, err = cl.Status(ctx); err != nil || !late {
			break
		}
		if !wasBooting {
			fmt.Fprintln(t.Err, "warning: the data volume does not answer; new profiles that hinit has not read yet are left out")
			break
		}
		if time.Until(end) < DialRetryPause {
			return nil, fmt.Errorf("cannot know what %s --all means: hinit is still booting: %w", verb, unknown)
		}
	}
	if err != nil {
		return nil, err
	}
	if l := st.Init.Lease; l != nil && l.State == client.LeaseWaiting {
		return nil, errors.New(l.Detail)
	}
	enabled, err := enabledServices(ctx, cl)
	if err != nil {
		return nil, err
	}
	for _, s := range st.Services {
		wanted := s.Want == "up" || s.Kind == "gateway" && verb != "restart"
		served := s.PID == 0 && verb == "start" && (s.ServedBy == client.ServedByDefault || s.ServedBy == client.ServedByDefaultExpected)
		isEnabled := s.Kind == client.KindService && enabled[s.Name] && !s.Task && verb != "restart"
		if !s.Expected && (isEnabled || wanted && !served) {
			names = append(names, s.Name)
		}
	}
	return names, nil
}

// enabledServices returns the services that hinit.yaml enables. start --all needs them, because after stop --all the status
// shows these services as wanted down.
func enabledServices(ctx context.Context, cl *dial.Client) (map[string]bool, error) {
	entries, err := cl.Config(ctx)
	enabled := make(map[string]bool)
	for _, e := range entries {
		rest, isService := strings.CutPrefix(e.Key, "services.")
		name, key, _ := strings.Cut(rest, ".")
		if on, _ := e.Value.(bool); isService && key == "enabled" && on {
			enabled[name] = true
		}
	}
	return enabled, err
}

// FlagGiven reports whether the user has given a flag.
func FlagGiven(c *Call, name string) bool {
	given := false
	c.Flags.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	return given
}

// showProgress shows a line such as "starting, 1.4 s" on the terminal until the call of end. doing is the first word of the line,
// and its time counts from since. A goroutine draws the line, so call end before you print anything else. Without a terminal,
// showProgress does nothing.
func (t *Terminal) showProgress(doing string, since time.Time) (end func()) {
	if t.progressOutput == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var drawing sync.WaitGroup
	drawing.Go(func() {
		if !pause.For(ctx, 300*time.Millisecond-time.Since(since)) {
			return
		}
		for ctx.Err() == nil {
			fmt.Fprintf(t.progressOutput, "\r%s, %.1f s\x1b[K", doing, time.Since(since).Seconds())
			pause.For(ctx, 100*time.Millisecond)
		}
		fmt.Fprint(t.progressOutput, "\r\x1b[K")
	})
	return func() {
		cancel()
		drawing.Wait()
	}
}
