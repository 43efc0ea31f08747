package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
	"hinit/internal/s6/formats"
)

var signalVerb = cli.Verb{
	Name: "signal", Summary: "send a signal to the main process of a service", Doing: "send a signal", Args: "NAME... SIGNAL [--json]",
	Services: true, Trailing: 1, Run: withWords(2, -1, func(t *cli.Terminal, c *cli.Call, words []string) int {
		names, word := words[:len(words)-1], words[len(words)-1]
		if _, known := formats.ParseSignal(word); !known {
			return t.Fail(cmdline.WrongUsage,
				"cannot send a signal: %q is no signal; write a name such as HUP or a number from 1 to 64, after the names of services", word)
		}
		return sendSignals(t, "signal", names, c.JSON, func(client.Service) (string, error) { return word, nil })
	}),
}

// sendSignals sends a signal to each service. The parameter which is a function that chooses the signal for a service and returns
// the signal's name. verb is the command, for messages.
func sendSignals(t *cli.Terminal, verb string, names []string, asJSON bool, which func(client.Service) (string, error)) int {
	worst := cmdline.Done
	for _, name := range names {
		number, pid := 0, 0
		s, err := cli.Ask(t, cli.ShortWait, func(ctx context.Context, cl *dial.Client) (s client.Service, err error) {
			if s, err = cl.Service(ctx, name); err != nil {
				return s, err
			}
			word, err := which(s)
			if err != nil {
				return s, err
			}
			number, _ = formats.ParseSignal(word)
			pid = s.PID
			return cl.Signal(ctx, name, syscall.Signal(number))
		})
		switch {
		case err != nil:
			worst = max(worst, t.Failed(fmt.Sprintf("%s %q", verb, name), err))
		case asJSON:
			worst = max(worst, t.Failed(verb, cli.WriteJSONLine(t.Out, s)))
		default:
			fmt.Fprintf(t.Out, "%s was sent %s (pid %d)\n", show.Name(s.Name), show.Signal(number), pid)
		}
	}
	return worst
}

var reloadVerb = cli.Verb{
	Name: "reload", Args: "[NAME... | --state STATE] [--dry-run] [--force] [--json]", Services: true,
	Summary: "read hinit.yaml again and apply it, or have the named services read their own configuration",
	Run:     reload,
}

func reload(t *cli.Terminal, c *cli.Call) int {
	var how client.Reload
	c.Flags.BoolVar(&how.DryRun, "dry-run", false, "print what it would do, and do nothing")
	c.Flags.BoolVar(&how.Force, "force", false, "if hinit.yaml is gone, stop the services that were in it")
	names, code, ok := c.Parse(t, 0, -1)
	switch {
	case !ok:
		return code
	case len(names) > 0 && how != (client.Reload{}):
		return t.Fail(cmdline.WrongUsage, "cannot reload: --dry-run and --force are for hinit.yaml, not for services")
	case len(names) > 0:
		return reloadServices(t, names, c.JSON)
	}
	did, err := cli.Ask(t, time.Minute, func(ctx context.Context, cl *dial.Client) (client.ReloadReply, error) { return cl.Reload(ctx, how) })
	if said := (*client.Error)(nil); errors.As(err, &said) && strings.Contains(said.Message, "\n") {
		code := cmdline.Done
		for line := range strings.SplitSeq(said.Message, "\n") { // one line for each mistake
			one := *said
			one.Message = line
			code = t.Failed("reload", &one)
		}
		return code
	}
	return t.Show(c, did, err, func() {
		for _, s := range did.Plan {
			fmt.Fprintln(t.Out, s.Op, show.Line(s.Service), s.What)
		}
		for _, key := range did.Settings {
			fmt.Fprintln(t.Out, "changed:", show.Line(key))
		}
		switch {
		case len(did.Plan)+len(did.Changes) == 0:
			fmt.Fprintln(t.Out, "nothing has changed")
		case how.DryRun:
			fmt.Fprintln(t.Out, "this was a dry run: nothing was changed")
		}
	})
}

// reloadServices sends each named service its reload signal.
func reloadServices(t *cli.Terminal, names []string, asJSON bool) int {
	signals, err := cli.Ask(t, cli.ShortWait, reloadSignals)
	if err != nil {
		return t.Failed("reload", err)
	}
	return sendSignals(t, "reload", names, asJSON, func(s client.Service) (string, error) {
		key, ofAll := "services."+s.Name, ""
		if s.Profile != "" {
			key, ofAll = "profiles."+s.Profile, signals["agent"]
		}
		if name := cmp.Or(signals[key], ofAll); name != "" {
			return name, nil
		}
		return "", fmt.Errorf("hinit.yaml has no reload_signal for it; set %s.reload_signal: HUP", key)
	})
}

// reloadSignals returns the reload signals in the configuration of the running init. The map's key is the path of the mapping
// that sets the signal: services.NAME, profiles.NAME or agent.
func reloadSignals(ctx context.Context, cl *dial.Client) (map[string]string, error) {
	entries, err := cl.Config(ctx)
	signals := make(map[string]string)
	for _, e := range entries {
		if key, is := strings.CutSuffix(e.Key, ".reload_signal"); is {
			signals[key], _ = e.Value.(string)
		}
	}
	return signals, err
}
