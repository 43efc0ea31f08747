package program

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"hinit/client/dial"
	"hinit/internal/cmdline"
	"hinit/internal/fsutil"
	"hinit/sandbox"
	"hinit/sandbox/cli"
	"hinit/sandbox/daemon"
	"hinit/sandbox/dockercli"
	"hinit/sandbox/policy"
)

// runHere handles a request in this process, which uses the engine directly.
func (p Program) runHere(ctx context.Context, req daemon.Request, local daemon.Streams) int {
	fail := func(code int, err error) int {
		fmt.Fprintln(local.Err, err)
		return code
	}
	opts, warnings, err := sandbox.FromEnv(os.LookupEnv)
	if err != nil {
		return fail(cmdline.WrongUsage, err)
	}
	if err := mayUseEngine(dial.SandboxSocket(os.LookupEnv), opts); err != nil {
		return fail(unreachableCode(req), err)
	}
	if !req.Docker {
		for _, w := range warnings {
			fmt.Fprintln(local.Err, "warning:", w)
		}
		opts.Warn = func(text string) { fmt.Fprintln(local.Err, "warning:", text) }
	}
	opts.Session = "cli"
	engine, err := p.Engine(opts.Docker)
	if err != nil {
		return fail(unreachableCode(req), err)
	}
	manager, err := sandbox.NewManager(policy.TranslatingEngine{Engine: engine}, opts)
	if err != nil {
		return fail(cmdline.Failed, err)
	}
	defer manager.Close()
	return runRequest(ctx, manager, req, permittedWords(), local)
}

// mayUseEngine returns an error if this process must not use the engine directly. If the operator wants the service, there must
// be no way around it. Otherwise an agent could stop the service to evade the service's rules. Also, root must not use the home
// directory of an agent. The agent controls the files in it, and could get sandboxes that only root may have.
func mayUseEngine(socket string, opts sandbox.Options) error {
	_, left := os.Stat(socket + ".root") // written by the service into a directory that only root can change
	switch wanted := strings.ToLower(os.Getenv("HINIT_SANDBOX")); {
	case left == nil, wanted == "1", wanted == "true", wanted == "yes":
		return errors.New("cannot use the sandboxes: their service is not up; start it with: hinit start sandbox")
	case os.Geteuid() != 0:
		return nil
	}
	for _, dir := range []string{opts.Home, opts.Dir} {
		info, err := os.Stat(dir)
		if err != nil {
			continue // root will create the directory
		}
		if uid := fsutil.UID(info); uid != 0 {
			return fmt.Errorf("cannot use the sandboxes of %s as root: it belongs to user %d; run this as that user, or with the service (HINIT_SANDBOX=1)", dir, uid)
		}
	}
	return nil
}

// runRequest handles a request with the caller's manager. The parameter allow holds the words of HINIT_SANDBOX_ALLOW. It is nil
// in the service.
func runRequest(ctx context.Context, m *sandbox.Manager, req daemon.Request, allow []string, s daemon.Streams) int {
	if !req.Docker {
		return cli.Main(ctx, m, &cli.Call{Args: req.Args, Env: req.Env, TTY: req.TTY, Size: req.Size, Streams: s})
	}
	call, err := dockercli.Parse(req.Args, allow)
	if err != nil {
		return dockercli.PrintError(s.Err, err, allow == nil)
	}
	p := &dockercli.Emulator{Manager: m}
	return p.Answer(ctx, call, dockercli.Caller{Process: req.Parent, Env: req.Env, Streams: s})
}
