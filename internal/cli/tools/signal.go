package tools

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
)

func signalVerb() cli.Verb {
	return cli.Verb{
		Name: "signal", Doing: "send a signal", Args: "NAME... SIGNAL [--json]",
		Help:     "SIGNAL is a name such as HUP or SIGUSR1, or a number from 1 to 64. A service that the signal ends is started again.",
		Services: true, Last: 1, Run: func(t *cli.Terminal, c *cli.Call) int {
			asJSON := c.Flags.Bool("json", false, "print JSON")
			words, code, ok := c.Parse(t, 2, -1)
			if !ok {
				return code
			}
			names, word := words[:len(words)-1], words[len(words)-1]
			if signalNumber(word) == 0 {
				return t.Fail(cmdline.WrongUsage,
					"cannot send a signal: %q is no signal; write a name such as HUP or a number from 1 to 64, after the names of services", word)
			}
			return sendSignals(t, "signal", names, *asJSON, func(client.Service) (string, error) { return word, nil })
		},
	}
}

// lastSignal is the highest number of a signal that Linux has.
const lastSignal = 64

// signalNumber returns the number of a signal by its name, with or without SIG, or by its number; 0 for none.
func signalNumber(word string) syscall.Signal {
	if n, err := strconv.ParseUint(word, 10, 8); err == nil && n <= lastSignal {
		return syscall.Signal(n)
	}
	return unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(word), "SIG"))
}

// sendSignals sends a signal to each service. The function which returns the name of the signal for a service.
func sendSignals(t *cli.Terminal, verb string, names []string, asJSON bool, which func(client.Service) (string, error)) int {
	worst := cmdline.Done
	for _, name := range names {
		word, pid := "", 0
		s, err := cli.Ask(t, cli.ShortWait, func(ctx context.Context, cl *client.Client) (s client.Service, err error) {
			if s, err = cl.Service(ctx, name); err == nil {
				word, err = which(s)
			}
			if err != nil {
				return s, err
			}
			pid = s.PID
			return cl.Signal(ctx, name, signalNumber(word))
		})
		switch {
		case err != nil:
			worst = max(worst, t.Failed(fmt.Sprintf("%s %q", verb, name), err))
		case asJSON:
			worst = max(worst, t.Failed(verb, cli.JSONLineTo(t.Out, s)))
		default:
			fmt.Fprintf(t.Out, "%s was sent %s (pid %d)\n", show.Name(s.Name), show.Signal(int(signalNumber(word))), pid)
		}
	}
	return worst
}
