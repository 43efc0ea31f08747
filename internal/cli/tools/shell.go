package tools

import (
	"cmp"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/account"
	"hinit/internal/boot"
	"hinit/internal/cli"
	"hinit/internal/config"
	"hinit/internal/container/units"
	"hinit/internal/proc"
	"hinit/internal/pty"
	"hinit/profiles"
)

func shellVerb() cli.Verb {
	return cli.Verb{
		Name: "shell", Doing: "open a shell", Args: "NAME [-- COMMAND...]",
		Help: `The shell, or the command, has the user, the environment, the directory and the limits of the service,
which need not run. It has its own terminal, so it can't type into the caller's. The exit code is that
of the command.`,
		Run: shell,
	}
}

func shell(t *cli.Terminal, c *cli.Call) int {
	words, code, ok := c.Parse(t, 1, -1)
	if !ok {
		return code
	}
	doing := fmt.Sprintf("open a shell of %q", words[0])
	names, err := t.Chosen(c, words[:1], "")
	if err == nil && len(names) != 1 {
		err = fmt.Errorf("%d services match, name one of them", len(names))
	}
	if err != nil {
		return t.Failed(doing, err)
	}
	st, err := t.Status(cli.ShortWait, names[0])
	if err != nil {
		return t.Failed(doing, err)
	}
	spec, err := specOf(t, st.Init, st.Services[0])
	if err != nil {
		return t.Failed(doing, err)
	}
	if spec.Argv = words[1:]; len(spec.Argv) == 0 {
		spec.Argv = []string{"/bin/sh"}
		if unix.Access("/bin/bash", unix.X_OK) == nil {
			spec.Argv[0] = "/bin/bash"
		}
	}
	x, err := onOwnTerminal(t, spec)
	if err != nil {
		return t.Failed(doing, err)
	}
	if x.Signal != 0 {
		return 128 + x.Signal
	}
	return x.Code
}

// specOf returns what a service runs as. It is made from the configuration: a process of the agent decides nothing about what root starts.
func specOf(t *cli.Terminal, init client.Init, s client.Service) (spec proc.Spec, err error) {
	plain := init.Plain != ""
	if plain {
		if err := os.Chdir(init.Home); err != nil { // what the file says is relative to it
			return spec, err
		}
	}
	cfg, err := config.Load(config.Options{Path: init.Plain, Plain: plain, Env: t.Env})
	if err != nil {
		return spec, err
	}
	agent, env := boot.Caller(), boot.OuterEnv()
	if !plain {
		if agent, err = boot.LookupAgent(cfg); err != nil {
			return spec, err
		}
		env = boot.ContainerEnv(cfg.Home)
	}
	maker := units.NewMaker(agent, cfg.Home, env, plain)
	who := cfg.Agent.User
	def, known := cfg.Services[s.Name]
	switch {
	case s.Kind == client.KindGateway:
		p, err := profiles.Open(cfg.Home, agent.Actor, cfg.Profiles.Marker).Profile(s.Profile)
		if err != nil {
			return spec, err
		}
		spec = maker.Gateway(cfg, p, nil).Spec
	case known:
		u, err := maker.Service(cfg, def)
		if err != nil {
			return spec, err
		}
		spec, who = u.Spec, def.User
	default:
		return spec, errors.New("it is in no configuration that hinit has here")
	}
	if user, err := account.Lookup("", who); os.Geteuid() != 0 && who != "" && (err != nil || user.UID != uint32(os.Geteuid())) {
		return spec, &client.Error{Kind: client.KindNotAllowed, Message: fmt.Sprintf("it runs as %s; be root or that user", who)}
	}
	spec.ID, spec.OOM = 1, 0
	return spec, nil
}

// onOwnTerminal runs a command to its end: on a terminal of its own where standard input is one.
func onOwnTerminal(t *cli.Terminal, spec proc.Spec) (proc.Exit, error) {
	spec.Files = []*os.File{t.In, os.Stdout, os.Stderr}
	if !proc.IsTerminal(t.In) {
		child, err := proc.StartChild(spec)
		if err != nil {
			return proc.Exit{}, err
		}
		return child.Wait()
	}
	near, far, err := pty.Open()
	if err != nil {
		return proc.Exit{}, err
	}
	defer near.Close()
	spec.Files, spec.Console = []*os.File{far, far, far}, true
	child, err := proc.StartChild(spec)
	far.Close()
	if err != nil {
		return proc.Exit{}, err
	}
	relayed := pty.Relay(t.In, t.Raw(), near)
	x, err := child.Wait()
	return x, cmp.Or(err, relayed)
}
