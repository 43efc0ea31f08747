package tools

import (
	"context"
	"fmt"
	"syscall"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
	"hinit/internal/s6/formats"
)

var signalVerb = cli.Verb{
	Name: "signal", Summary: "send a signal to the main process of a service", Doing: "send a signal", Args: "NAME... SIGNAL [--json]",
	Help:     "SIGNAL is a name such as HUP or SIGUSR1, or a number from 1 to 64. A service that the signal ends is started again.",
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
