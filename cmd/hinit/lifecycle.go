package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"hinit/client"
	"hinit/internal/control/show"
)

func lifecycleVerb(name, summary string) verb {
	return verb{
		name: name, args: "NAME... | --all [--no-wait] [--timeout 30s]", summary: summary,
		help: "Exit code 0 means that it is so: up for a second, or nothing of it alive (with --no-wait: that it was asked for).\n" +
			"While the container boots the command waits, within its timeout, until the boot knows what there is.",
		run: lifecycle,
	}
}

func lifecycle(t *terminal, c *call) int {
	all := c.flags.Bool("all", false, allMeans(c.verb.name))
	noWait := c.flags.Bool("no-wait", false, "do not wait for the result")
	timeout := c.flags.Duration("timeout", 0, "how long to wait for the result, as `D` (default 30s; 40s for stop and restart, where a KILL may come first)")
	names, code, ok := c.parse(t, 0, -1)
	if !ok {
		return code
	}
	switch {
	case *all && len(names) > 0:
		return t.fail(exitUsage, "cannot %s: give names or --all, not both", c.doing())
	case !*all && len(names) == 0:
		return t.fail(exitUsage, "cannot %s: expected: hinit %s %s", c.doing(), c.verb.name, c.verb.args)
	case *timeout < 0, flagGiven(c, "timeout") && *timeout == 0:
		return t.fail(exitUsage, "cannot %s: --timeout must be positive", c.doing())
	}
	ctx, cancel := interruptible()
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
	if *all {
		if names, err = t.everything(ctx, cl, c.verb.name, patience-time.Since(begin)); err != nil {
			return t.failed(c.doing(), err)
		}
	}
	wait := client.Wait{Wait: !*noWait}
	if *timeout > 0 {
		wait.Timeout = max(*timeout-time.Since(begin), time.Millisecond)
	}
	ask := map[string]func(string) (client.Service, error){
		"start":   func(n string) (client.Service, error) { return cl.Start(ctx, n, wait) },
		"stop":    func(n string) (client.Service, error) { return cl.Stop(ctx, n, wait) },
		"restart": func(n string) (client.Service, error) { return cl.Restart(ctx, n, wait) },
	}[c.verb.name]
	results := make([]error, len(names))
	states := make([]client.Service, len(names))
	limit := make(chan struct{}, 100) // hinit takes 128 connections of a user
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			states[i], results[i] = ask(name)
		})
	}
	wg.Wait()
	worst := exitDone
	for i, err := range results {
		if err != nil {
			worst = max(worst, t.failed(fmt.Sprintf("%s %q", c.verb.name, names[i]), err))
			continue
		}
		fmt.Fprintln(t.out, show.Outcome(states[i]))
	}
	return worst
}

func allMeans(verb string) string {
	switch verb {
	case "restart":
		return "everything that is wanted up"
	case "stop":
		return "every gateway, and every service that is wanted up"
	}
	return "every gateway"
}

// bootPatience is how long a command waits for a hinit that is still booting when it is not told.
const bootPatience = 30 * time.Second

// everything is what --all means for a verb, once hinit knows all there is.
func (t *terminal) everything(ctx context.Context, cl *client.Client, verb string, patience time.Duration) (names []string, err error) {
	boot, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := cl.Rescan(boot); err != nil { // which waits for the boot
		said := (*client.Error)(nil)
		if boot.Err() != nil || errors.As(err, &said) && said.Kind == client.KindTimeout {
			return nil, fmt.Errorf("cannot tell what %s --all means: hinit is still booting: %w", verb, err)
		}
	}
	st, err := cl.Status(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range st.Services {
		if s.Kind == "gateway" && verb != "restart" || s.Want == "up" {
			names = append(names, s.Name)
		}
	}
	return names, nil
}
