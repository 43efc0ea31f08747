package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/account"
	"hinit/internal/boot"
	"hinit/internal/boot/lookup"
	"hinit/internal/cli"
	"hinit/internal/config"
	"hinit/internal/container/units"
	"hinit/internal/fsutil"
	"hinit/internal/isolation"
	"hinit/internal/proc"
	"hinit/internal/pty"
	"hinit/internal/reexec"
	"hinit/internal/s6/formats"
	"hinit/profiles"
)

var shellVerb = cli.Verb{
	Name: "shell", Summary: "open a shell as a service: its user, environment and directory", Action: "open a shell", Args: "NAME [-- COMMAND...]",
	Run: withArgs(1, -1, runShell),
}

func runShell(t *cli.Terminal, c *cli.Call, words []string) int {
	doing := fmt.Sprintf("open a shell of %q", words[0])
	names, err := t.SelectServices(c, words[:1], "")
	if err == nil && len(names) != 1 {
		err = fmt.Errorf("%d services match, name one of them", len(names))
	}
	if err != nil {
		return t.ReportError(doing, err)
	}
	st, err := t.Status(names[0])
	if err != nil {
		return t.ReportError(doing, err)
	}
	spec, err := serviceSpec(t, st.Init, st.Services[0])
	if err != nil {
		return t.ReportError(doing, err)
	}
	command := words[1:]
	if len(command) == 0 {
		command = []string{"/bin/sh"}
		if unix.Access("/bin/bash", unix.X_OK) == nil {
			command[0] = "/bin/bash"
		}
	}
	spec.Argv = isolation.Wrap(spec.Argv, command)
	x, err := runOnTerminal(t, spec)
	if err != nil {
		return t.ReportError(doing, err)
	}
	if x.Signal != 0 {
		return 128 + x.Signal
	}
	return x.Code
}

// serviceSpec returns a specification for a process with the user, environment, directory and limits of a service. The values
// come from the configuration, the environment of the init and the slot of the gateway, never from a process of the agent. So
// the agent can't decide what root starts.
func serviceSpec(t *cli.Terminal, init client.Init, s client.Service) (spec proc.Spec, err error) {
	plain := init.ServicesFile != ""
	if plain {
		if err := os.Chdir(init.Home); err != nil { // relative paths in the configuration file start at this directory
			return spec, err
		}
	}
	cfg, err := config.Load(config.Options{Path: init.ServicesFile, ServicesOnly: plain, Env: t.Env})
	if err != nil {
		return spec, err
	}
	own := terminalVariables(os.Environ())
	if err := adoptEnviron(t, init.PID); err != nil {
		return spec, err
	}
	agent, env := boot.CallerAsAgent(), boot.InheritedEnv()
	if !plain {
		if agent, err = lookup.Agent(cfg); err != nil {
			return spec, err
		}
		env = boot.ContainerEnv(cfg.Home)
	}
	maker := units.NewMaker(agent.WithTenants(cfg), cfg.Home, env, plain)
	who := cfg.Agent.User
	def, known := cfg.Services[s.Name]
	switch {
	case s.Kind == client.KindGateway:
		store := profiles.Open(cfg.Home, agent.Actor, cfg.Profiles.Marker)
		p, err := store.Profile(s.Profile)
		if err != nil {
			return spec, err
		}
		if topology, err := store.Topology(os.Getenv, ""); err == nil { // PID 1 reports errors of the topology file
			maker.SetTopology(topology)
		}
		exports, err := exportsOf(t, agent.Actor, s.Name)
		if err != nil {
			return spec, err
		}
		spec = maker.Gateway(cfg, p, exports).Spec
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
	spec.ID, spec.OOMIncrease, spec.Env = 1, 0, proc.SetEnv(spec.Env, own)
	return spec, nil
}

// terminalVariables returns the variables that describe the caller's terminal.
func terminalVariables(environ []string) map[string]string {
	out := make(map[string]string)
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if name == "TERM" || name == "LANG" || strings.HasPrefix(name, "LC_") {
			out[name] = value
		}
	}
	return out
}

// adoptEnviron replaces the environment of this process by the init's environment, if the user may read it.
func adoptEnviron(t *cli.Terminal, pid int) error {
	text, err := os.ReadFile(fmt.Sprintf("%s/%d/environ", procPathOf(t, pid), pid))
	if err != nil {
		return nil //nolint:nilerr // keep the environment of this process
	}
	os.Clearenv()
	for kv := range strings.SplitSeq(string(text), "\x00") {
		if name, value, is := strings.Cut(kv, "="); is && name != "" && name != reexec.StateVariable && name != reexec.FrozenVariable {
			if err := os.Setenv(name, value); err != nil {
				return err
			}
		}
	}
	return nil
}

// maxRunScript is the maximum number of bytes of a slot's run script.
const maxRunScript = 64 << 10

// exportsOf returns the variables that the run script in a gateway's slot exports, as PID 1 would read them. Without s6 it
// returns none.
func exportsOf(t *cli.Terminal, as *fsutil.Actor, name string) (map[string]string, error) {
	slots, err := t.Client().Slots(context.Background())
	at := slices.IndexFunc(slots, func(slot client.Slot) bool { return slot.Name == name })
	if err != nil || at < 0 {
		return nil, err
	}
	dir, err := fsutil.OpenDir(slots[at].Dir, as)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	script, err := dir.ReadFile(formats.RunFile, maxRunScript)
	exports, _ := formats.Exports(script)
	return exports, err
}

// runOnTerminal runs a command and waits for its end. If standard input is a terminal, the command gets a new terminal, so that
// it can't type on the caller's terminal.
func runOnTerminal(t *cli.Terminal, spec proc.Spec) (proc.Exit, error) {
	spec.Files = []*os.File{t.In, os.Stdout, os.Stderr}
	if !proc.IsTerminal(t.In) {
		return proc.Run(context.Background(), spec)
	}
	near, far, err := pty.Open()
	if err != nil {
		return proc.Exit{}, err
	}
	defer near.Close()
	spec.Files, spec.ControllingTTY = []*os.File{far, far, far}, true
	child, err := proc.StartChild(spec)
	far.Close()
	if err != nil {
		return proc.Exit{}, err
	}
	relayed := pty.Relay(t.In, t.RawOutput(), near)
	x, err := child.Wait()
	return x, cmp.Or(err, relayed)
}
