package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"hinit/client"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
)

func notifyVerb() verb {
	return verb{
		name: "notify", args: "KEY [DATA]", summary: "post a notice: an event of your own, for whoever waits for it",
		help: "It is in hinit events, and ends a hinit wait --for notice. Root and the agent's user may post.",
		run: func(t *terminal, c *call) int {
			words, code, ok := c.parse(t, 1, 2)
			if !ok {
				return code
			}
			n := client.Notice{Key: words[0]}
			if len(words) > 1 {
				n.Data = words[1]
			}
			_, err := ask(t, shortWait, func(ctx context.Context, cl *client.Client) (client.Notice, error) { return n, cl.Notify(ctx, n) })
			return t.failed(fmt.Sprintf("post the notice %q", n.Key), err)
		},
	}
}

func waitVerb() verb {
	return verb{
		name: "wait", args: "[NAME] --for ready|exit|notice [--key K] [--timeout D] [--json]", summary: "wait until a service is ready or has ended, or for a notice",
		help: "For ready and exit NAME is needed. What is so already ends the wait at once; a notice has to come after its beginning, from\n" +
			"any process or from one of the service. The exit code is 0 when it came, and 1 when the time is over or a service can't get ready by itself.",
		run: wait,
	}
}

func wait(t *terminal, c *call) int {
	what := c.flags.String("for", "", "what to wait for: `ready|exit|notice`")
	key := c.flags.String("key", "", "only a notice with the key `K`")
	timeout := c.flags.Duration("timeout", 0, "how long to wait, as `D`; for ever without it")
	asJSON := c.flags.Bool("json", false, "print the event, or the service, as JSON")
	names, code, ok := c.parse(t, 0, 1)
	if !ok {
		return code
	}
	switch {
	case *what != "ready" && *what != "exit" && *what != "notice":
		return t.fail(exitUsage, "cannot wait: --for is one of ready, exit, notice")
	case *what != "notice" && len(names) == 0:
		return t.fail(exitUsage, "cannot wait: expected: hinit wait NAME --for %s", *what)
	case *what != "notice" && *key != "":
		return t.fail(exitUsage, "cannot wait: --key needs --for notice")
	case *timeout < 0:
		return t.fail(exitUsage, "cannot wait: --timeout must be positive")
	}
	ctx, cancel := cmdline.Interruptible()
	defer cancel()
	if *timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, *timeout)
		defer cancel()
	}
	patience := bootPatience
	if *timeout > 0 {
		patience = min(patience, *timeout)
	}
	cl, err := t.dialSoon(ctx, patience)
	if err != nil {
		return t.failed("wait", err)
	}
	w := waiting{cl: cl, key: *key}
	if len(names) == 1 {
		st, err := cl.Status(ctx, names[0])
		if err != nil {
			return t.failed("wait", err)
		}
		w.first = st.Services[0]
	}
	var came *waitReport
	var line string
	for came == nil {
		if *what == "notice" {
			came, line, err = w.notice(ctx)
		} else {
			came, line, err = w.service(ctx, *what == "exit")
		}
		switch {
		case ctx.Err() != nil && came == nil && *timeout > 0 && errors.Is(ctx.Err(), context.DeadlineExceeded):
			return t.fail(exitFailed, "cannot wait any longer: no %s within %s", *what, *timeout)
		case ctx.Err() != nil && came == nil:
			return exitFailed
		case err != nil:
			return t.failed("wait", err)
		case came == nil: // hinit ends, or it has become another image of itself
			if _, gone := cl.Health(ctx); gone != nil {
				return t.failed("wait", gone)
			}
		}
	}
	if *asJSON {
		err = writeJSON(t.out, came)
	} else {
		_, err = fmt.Fprintln(t.out, show.Line(line))
	}
	if err != nil {
		return t.failed("wait", err)
	}
	if *what == "ready" && !came.Service.Ready {
		return exitFailed
	}
	return exitDone
}

// waitReport is the result of a wait.
type waitReport struct {
	Service *client.Service `json:"service"` // as it is now; null after a notice
	Event   *client.Event   `json:"event"`   // the notice; null for a service
}

// waiting is a wait for one thing.
type waiting struct {
	cl     *client.Client
	key    string
	first  client.Service // at the beginning; no name for none
	cursor uint64         // of the last event seen
}

var errCame = errors.New("it came")

func (w *waiting) notice(ctx context.Context) (came *waitReport, line string, err error) {
	o := client.EventOptions{Since: w.cursor, Follow: true}
	if w.cursor == 0 {
		o.Last = -1
	}
	err = w.cl.Events(ctx, o, func(e client.Event) error {
		w.cursor = max(w.cursor, e.Seq)
		if e.Key == "" || w.key != "" && e.Key != w.key || w.first.Name != "" && e.Service != w.first.Name {
			return nil
		}
		came, line = &waitReport{Event: &e}, eventLine(e)
		return errCame
	})
	return came, line, notCame(err)
}

func (w *waiting) service(ctx context.Context, exit bool) (came *waitReport, line string, err error) {
	err = w.cl.Watch(ctx, func(change client.StatusChange) error {
		for _, s := range change.Services {
			if s.Name != w.first.Name {
				continue
			}
			switch {
			case exit && (s.PID == 0 || lastEnd(s).After(lastEnd(w.first))):
				line = fmt.Sprintf("%s has ended", s.Name)
				if s.LastExit != nil {
					line += ": " + show.LastExit(s.LastExit)
				}
			case !exit && s.State == client.StateUp && s.Ready:
				line = fmt.Sprintf("%s is ready", s.Name)
			case !exit && (s.State == client.StateFailed || s.State == client.StateParked):
				line = fmt.Sprintf("%s is %s: %s", s.Name, s.State, s.Reason)
			default:
				return nil
			}
			came = &waitReport{Service: &s}
			return errCame
		}
		if change.Whole {
			return fmt.Errorf("%q is gone: %w", w.first.Name, client.ErrUnknown)
		}
		return nil
	})
	return came, line, notCame(err)
}

func lastEnd(s client.Service) time.Time {
	if s.LastExit == nil {
		return time.Time{}
	}
	return s.LastExit.At
}

func notCame(err error) error {
	if errors.Is(err, errCame) {
		return nil
	}
	return err
}
