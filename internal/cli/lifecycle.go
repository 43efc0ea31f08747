package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"hinit/client"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
)

func lifecycleVerb(name, summary string) verb {
	return verb{
		name: name, doing: name + " a service", args: lifecycleArgs(name), summary: summary,
		help: "Exit code 0 means that it is so: it has said that it is ready, or nothing of it is alive (with --no-wait: that it was asked for).\n" +
			"What can't say that it is ready has to be up for a second (agent.settle in hinit.yaml). While the container boots the command waits, within its timeout, until the boot knows what there is.",
		run: lifecycle,
	}
}

func lifecycleArgs(name string) string {
	choice := "NAME... | --all"
	if name == "restart" {
		choice += " | --changed"
	}
	if name != "stop" {
		choice += " [--force]"
	}
	return choice + " [--no-wait] [--timeout 30s] [--json]"
}

func lifecycle(t *terminal, c *call) int {
	changed := new(bool)
	if c.verb.name == "restart" {
		changed = c.flags.Bool("changed", false, "everything that runs as an older configuration says")
	}
	all := c.flags.Bool("all", false, allMeans(c.verb.name))
	force := new(bool)
	if c.verb.name != "stop" {
		force = c.flags.Bool("force", false, "run a gateway although the one of the default profile serves its profile")
	}
	asJSON := c.flags.Bool("json", false, "print JSON, a service a line as status has it")
	noWait := c.flags.Bool("no-wait", false, "do not wait for the result")
	timeout := c.flags.Duration("timeout", 0, "how long to wait for the result, as `D` (default 30s; 40s for stop and restart, where a KILL may come first)")
	names, code, ok := c.parse(t, 0, -1)
	if !ok {
		return code
	}
	switch {
	case *all && *changed, (*all || *changed) && len(names) > 0:
		return t.fail(exitUsage, "cannot %s: expected one of: %s", c.doing(), c.verb.args)
	case !*all && !*changed && len(names) == 0:
		return t.fail(exitUsage, "cannot %s: expected: hinit %s %s", c.doing(), c.verb.name, c.verb.args)
	case *timeout < 0, flagGiven(c, "timeout") && *timeout == 0:
		return t.fail(exitUsage, "cannot %s: --timeout must be positive", c.doing())
	}
	ctx, cancel := cmdline.Interruptible()
	defer cancel()
	begin := time.Now()
	patience := *timeout
	if patience == 0 {
		patience = bootPatience
	}
	cl, err := t.dialSoon(ctx, patience)
	if err != nil {
		return t.failed(c.doing(), err)
	}
	switch {
	case *all:
		names, err = t.everything(ctx, cl, c.verb.name, patience-time.Since(begin))
	case *changed:
		names, err = drifted(ctx, cl)
	}
	if err != nil {
		return t.failed(c.doing(), err)
	}
	if len(names) == 0 && *changed && !*asJSON {
		fmt.Fprintln(t.out, "nothing to restart: everything runs as the configuration says")
	}
	wait := client.Wait{Wait: !*noWait, Force: *force}
	if *timeout > 0 {
		wait.Timeout = max(*timeout-time.Since(begin), time.Millisecond)
	}
	results := make([]error, len(names))
	states := make([]client.Service, len(names))
	limit := make(chan struct{}, 100) // hinit takes 128 connections of a user
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			states[i], results[i] = cl.Order(ctx, client.Verb(c.verb.name), name, wait)
		})
	}
	stopped := func() {}
	if !*noWait {
		stopped = t.progress(map[string]string{"start": "starting", "stop": "stopping", "restart": "restarting"}[c.verb.name], begin)
	}
	wg.Wait()
	stopped()
	worst := exitDone
	for i, err := range results {
		if err != nil {
			worst = max(worst, t.failed(fmt.Sprintf("%s %q", c.verb.name, names[i]), err))
			continue
		}
		switch {
		case *asJSON:
			if err := jsonLineTo(t.out, states[i]); err != nil {
				return t.failed(c.doing(), err)
			}
		case *noWait:
			fmt.Fprintln(t.out, show.Accepted(states[i]))
		default:
			fmt.Fprintln(t.out, show.Outcome(states[i]))
		}
	}
	return worst
}

// drifted are the services that run as an older configuration says.
func drifted(ctx context.Context, cl *client.Client) (names []string, err error) {
	st, err := cl.Status(ctx)
	for _, s := range st.Services {
		if s.Drifted {
			names = append(names, s.Name)
		}
	}
	return names, err
}

func allMeans(verb string) string {
	switch verb {
	case "restart":
		return "everything that is wanted up"
	}
	return "every gateway, and every service that hinit.yaml enables or that is wanted up"
}

// bootPatience is how long a command waits for a hinit that is still booting when it is not told.
const bootPatience = 30 * time.Second

// everything is what --all means for a verb, once hinit knows all there is. Where the data volume does not answer, that is what hinit
// knows already, and half of the patience is left for it.
func (t *terminal) everything(ctx context.Context, cl *client.Client, verb string, patience time.Duration) (names []string, err error) {
	end := time.Now().Add(patience)
	st, err := cl.Status(ctx)
	for err == nil {
		look, cancel := context.WithTimeout(ctx, time.Until(end)/2)
		unknown := cl.Rescan(look) // which waits for the boot
		said := (*client.Error)(nil)
		late := look.Err() != nil || errors.As(unknown, &said) && said.Kind == client.KindTimeout
		cancel()
		wasBooting := st.Init.Booting
		if st, err = cl.Status(ctx); err != nil || !late {
			break
		}
		if !wasBooting {
			fmt.Fprintln(t.err, "warning: the data volume does not answer; profiles that nobody has looked for since they were made are left out")
			break
		}
		if time.Until(end) < dialPause {
			return nil, fmt.Errorf("cannot tell what %s --all means: hinit is still booting: %w", verb, unknown)
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
		if s.Expected {
			continue
		}
		if verb != "restart" && s.Kind == client.KindService && enabled[s.Name] && !s.Task {
			names = append(names, s.Name)
			continue
		}
		if s.PID == 0 && verb == "start" && (s.ServedBy == client.ServedByDefault || s.ServedBy == client.ServedExpected) {
			continue
		}
		if s.Kind == "gateway" && verb != "restart" || s.Want == "up" {
			names = append(names, s.Name)
		}
	}
	return names, nil
}

// enabledServices are those that hinit.yaml wants up, so that start --all brings back what stop --all has stopped.
func enabledServices(ctx context.Context, cl *client.Client) (map[string]bool, error) {
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
