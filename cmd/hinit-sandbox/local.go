package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"hinit/sandbox"
	"hinit/sandbox/cli"
	"hinit/sandbox/daemon"
	"hinit/sandbox/dockercli"
	"hinit/sandbox/policy"
)

// here answers a request in this process: it asks the engine itself.
func here(ctx context.Context, req daemon.Request, local daemon.Local) int {
	fail := func(code int, err error) int {
		fmt.Fprintln(local.Err, err)
		return code
	}
	opts, warnings, err := sandbox.FromEnv(os.LookupEnv)
	if err != nil {
		return fail(cli.Usage, err)
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
	engine = policy.Translated{Engine: engine}
	opts.Persist = opts.Persist || !req.Docker // a command line that ends is no agent that ends
	manager, err := sandbox.NewManager(engine, opts)
	if err != nil {
		return fail(cli.Failed, err)
	}
	defer manager.Close(context.WithoutCancel(ctx))
	if req.Docker {
		store, err := dockercli.NewDirStore(filepath.Join(os.TempDir(), "hinit-sandbox-"+strconv.Itoa(os.Geteuid())))
		if err != nil {
			return fail(1, err)
		}
		p := &dockercli.Personality{Engine: engine, Manager: manager, Store: store}
		return asked(ctx, p, req, allowed(), os.Getppid(), daemon.Streams{In: local.In, Out: local.Out, Err: local.Err})
	}
	host := &cli.Host{Manager: manager, Engine: engine, Profile: opts.Profile}
	return cli.Main(ctx, host, &cli.Call{
		Args: req.Args, Env: req.Env, In: local.In, Out: local.Out, Err: local.Err, TTY: req.TTY, Size: req.Size, Resizes: local.Resizes, Signals: local.Signals,
	})
}

// asked has a personality answer for the process parent, which runs docker commands.
func asked(ctx context.Context, p *dockercli.Personality, req daemon.Request, allow []string, parent int, s daemon.Streams) int {
	call, err := dockercli.Parse(req.Args, allow)
	if err != nil {
		fmt.Fprint(s.Err, dockercli.Text(err, allow == nil))
		return dockercli.Code(err)
	}
	process, _, err := dockercli.Process(parent)
	if err != nil || parent <= 1 {
		process = "" // it has gone, or nobody knows it: nothing is remembered
	}
	return p.Answer(ctx, call, dockercli.Caller{Process: process, Env: req.Env, Stdin: s.In, Stdout: s.Out, Stderr: s.Err})
}
