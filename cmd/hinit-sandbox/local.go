package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"hinit/internal/cmdline"
	"hinit/internal/config"
	"hinit/sandbox"
	"hinit/sandbox/cli"
	"hinit/sandbox/daemon"
	"hinit/sandbox/dockercli"
	"hinit/sandbox/policy"
)

// here answers a request in this process: it asks the engine itself.
func here(ctx context.Context, req daemon.Request, local daemon.Streams) int {
	fail := func(code int, err error) int {
		fmt.Fprintln(local.Err, err)
		return code
	}
	opts, warnings, err := sandbox.FromEnv(os.LookupEnv)
	if err != nil {
		return fail(cmdline.WrongUsage, err)
	}
	if err := mayAsk(config.SandboxSocket(os.LookupEnv), opts); err != nil {
		return fail(unreachable(req), err)
	}
	if !req.Docker {
		for _, w := range warnings {
			fmt.Fprintln(local.Err, "warning:", w)
		}
		opts.Warn = func(text string) { fmt.Fprintln(local.Err, "warning:", text) }
	}
	opts.Session = "cli"
	engine, err := sandbox.Docker(opts.Docker)
	if err != nil {
		return fail(unreachable(req), err)
	}
	manager, err := sandbox.NewManager(policy.Translated{Engine: engine}, opts)
	if err != nil {
		return fail(cmdline.Failed, err)
	}
	defer manager.Close()
	return answer(ctx, manager, req, allowed(), os.Getppid(), local)
}

// mayAsk says why this process may not ask the engine itself. Where the operator wants a service, an agent could stop it. And what a login shell of
// root's reads in the home of an agent is the agent's: in its sandboxes it would run as root of the host.
func mayAsk(socket string, opts sandbox.Options) error {
	_, left := os.Stat(socket + ".root") // the service leaves it behind, in a directory of root's
	switch wanted := strings.ToLower(os.Getenv("HINIT_SANDBOX")); {
	case left == nil, wanted == "1", wanted == "true", wanted == "yes":
		return errors.New("cannot use the sandboxes: their service is not up; start it with: hinit start sandbox")
	case os.Geteuid() != 0:
		return nil
	}
	for _, dir := range []string{opts.Home, opts.Dir} {
		info, err := os.Stat(dir)
		if err != nil {
			continue // it is made as root's
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 {
			return fmt.Errorf("cannot use the sandboxes of %s as root: it belongs to user %d; run this as that user, or with the service (HINIT_SANDBOX=1)", dir, st.Uid)
		}
	}
	return nil
}

// answer answers a request with the sandboxes of its caller. The process parent runs docker commands.
func answer(ctx context.Context, m *sandbox.Manager, req daemon.Request, allow []string, parent int, s daemon.Streams) int {
	if !req.Docker {
		return cli.Main(ctx, m, &cli.Call{Args: req.Args, Env: req.Env, TTY: req.TTY, Size: req.Size, Streams: s})
	}
	call, err := dockercli.Parse(req.Args, allow)
	if err != nil {
		return dockercli.Refuse(s.Err, err, allow == nil)
	}
	process := "" // it is gone or unknown: nothing is remembered
	if parent > 1 {
		process, _, _ = dockercli.Process(parent)
	}
	p := &dockercli.Personality{Manager: m}
	return p.Answer(ctx, call, dockercli.Caller{Process: process, Env: req.Env, Streams: s})
}
