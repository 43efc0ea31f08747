package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
	"hinit/internal/pause"
	"hinit/internal/procstat"
	"hinit/profiles"
	"hinit/supervisor"
)

var eventsVerb = cli.Verb{
	Name: "events", Action: "show the events", JSONHelp: "print one JSON object a line", SelectsServices: true, Args: "[NAME...] [--state STATE] [-f] [--json] [-n N] [--since D|TIME]",
	Summary: "print what has happened: starts, exits with their causes, stops",
	Run:     showEvents,
}

func showEvents(t *cli.Terminal, c *cli.Call) int {
	follow := c.Flags.Bool("f", false, "follow: keep printing")
	n := c.Flags.Int("n", 50, "the last `N` events, -1 for all that are kept")
	since := sinceFlag(c)
	names, code, ok := c.Parse(t, 0, -1)
	if !ok {
		return code
	}
	cl, err := t.Dial()
	if err != nil {
		return t.ReportError("show events", err)
	}
	ctx, cancel := cmdline.InterruptibleContext()
	defer cancel()
	var past []client.Event
	o := client.EventOptions{MaxPast: -1, Follow: true} // without history, show only new events
	err = cl.Events(ctx, client.EventOptions{}, func(e client.Event) error {
		past, o = append(past, e), client.EventOptions{AfterSeq: max(o.AfterSeq, e.Seq), Follow: true}
		return nil
	})
	var named map[string]bool
	if err == nil {
		named, err = eventNames(ctx, cl, names, past)
	}
	if err != nil {
		return t.ReportError("show events", err)
	}
	others := func(e client.Event) bool { // events of services that the user has not named
		return e.LostCount == 0 && (len(named) > 0 && !named[e.Service] || e.At.Before(*since))
	}
	past = slices.DeleteFunc(past, others)
	if *n >= 0 && (since.IsZero() || cli.FlagGiven(c, "n")) {
		past = past[max(0, len(past)-*n):]
	}
	emit := func(e client.Event) error {
		o = client.EventOptions{AfterSeq: max(o.AfterSeq, e.Seq), Follow: true}
		if others(e) {
			return nil
		}
		if c.JSON {
			return cmdline.WriteJSON(t.Out, e, "")
		}
		_, err := fmt.Fprintln(t.Out, show.EscapeLine(eventLine(e)))
		return err
	}
	for _, e := range past {
		err = cmp.Or(err, emit(e))
	}
	for first := true; *follow && ctx.Err() == nil && (err == nil || errors.Is(err, client.ErrUnreachable)); first = false {
		// The connection has ended. After a re-execution of hinit, the events continue on a new connection.
		if h, gone := cl.Health(ctx); !first && (gone != nil || !h.OK && !h.Booting) {
			break
		}
		err = cl.Events(ctx, o, emit)
	}
	if err != nil && ctx.Err() == nil {
		return t.ReportError("show events", err)
	}
	return cmdline.ExitDone
}

// eventNames returns the services for the names that the user has typed. A service that the status lacks may have been removed,
// so eventNames searches the past events.
func eventNames(ctx context.Context, cl *dial.Client, names []string, past []client.Event) (map[string]bool, error) {
	named := make(map[string]bool)
	for _, name := range names {
		st, err := cl.Status(ctx, name)
		if err == nil {
			named[st.Services[0].Name] = true
			continue
		}
		known := slices.IndexFunc(past, func(e client.Event) bool { return e.Service == name || e.Service == profiles.SlotName(name) })
		if !errors.Is(err, client.ErrUnknown) || known < 0 {
			return nil, err
		}
		named[past[known].Service] = true
	}
	return named, nil
}

func sinceFlag(c *cli.Call) *time.Time {
	since := new(time.Time)
	c.Flags.Func("since", "only lines or events since `D|TIME`: 10m, 1d, 15:04, 2006-01-02T15:04:05 or RFC 3339", func(text string) (err error) {
		*since, err = parseSince(text)
		return err
	})
	return since
}

func parseSince(text string) (time.Time, error) {
	if ago, err := cmdline.ParseDuration(text); err == nil {
		if ago <= 0 {
			return time.Time{}, errors.New("it must be positive, such as 10m")
		}
		return time.Now().Add(-ago), nil
	}
	today := time.Now().Format(time.DateOnly)
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02 15:04", time.DateOnly} {
		for _, text := range []string{text, today + " " + text} { // a time of day means today
			if at, err := time.ParseInLocation(layout, text, time.Local); err == nil {
				return at, nil
			}
		}
	}
	return time.Time{}, errors.New("it is neither a duration such as 10m or 1d nor a time such as 15:04 or 2006-01-02T15:04:05")
}

var notifyVerb = cli.Verb{
	Name: "notify", Summary: "post a notice: an event of your own, that others can wait for", Args: "KEY [DATA]",
	Run: withArgs(1, 2, func(t *cli.Terminal, _ *cli.Call, words []string) int {
		n := client.Notice{Key: words[0]}
		if len(words) > 1 {
			n.Data = words[1]
		}
		return t.ReportError(fmt.Sprintf("post the notice %q", n.Key), t.Client().Notify(context.Background(), n))
	}),
}

var waitVerb = cli.Verb{
	Name: "wait", SelectsServices: true, JSONHelp: "print the event, or the service, as JSON", Args: "[NAME] --for ready|exit|notice [--key K] [--timeout D] [--json]",
	Summary: "wait until a service is ready or has ended, or for a notice",
	Run:     awaitCondition,
}

func awaitCondition(t *cli.Terminal, c *cli.Call) int {
	what := c.Flags.String("for", "", "what to wait for: `ready|exit|notice`")
	key := c.Flags.String("key", "", "only a notice with the key `K`")
	timeout := c.Flags.Duration("timeout", 0, "how long to wait, as `D`; for ever without it")
	names, code, ok := c.Parse(t, 0, 1)
	if !ok {
		return code
	}
	switch {
	case *what != "ready" && *what != "exit" && *what != "notice":
		return t.Fail(cmdline.ExitUsage, "cannot wait: --for is one of ready, exit, notice")
	case *what != "notice" && len(names) == 0:
		return t.Fail(cmdline.ExitUsage, "cannot wait: expected: hinit wait NAME --for %s", *what)
	case *what != "notice" && *key != "":
		return t.Fail(cmdline.ExitUsage, "cannot wait: --key needs --for notice")
	case *timeout < 0:
		return t.Fail(cmdline.ExitUsage, "cannot wait: --timeout must be positive")
	}
	ctx, cancel := cmdline.InterruptibleContext()
	defer cancel()
	patience := cli.BootTimeout
	if *timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, *timeout)
		defer cancel()
		patience = min(patience, *timeout)
	}
	cl, err := t.DialDuringStart(ctx, patience)
	if err != nil {
		return t.ReportError("wait", err)
	}
	w := waitState{cl: cl, noticeKey: *key}
	follow := w.awaitNotice
	if *what != "notice" {
		follow = func(ctx context.Context) error { return w.awaitService(ctx, *what == "exit") }
	}
	if len(names) == 1 {
		st, err := cl.Status(ctx, names[0])
		if err != nil {
			return t.ReportError("wait", err)
		}
		w.serviceAtStart = st.Services[0]
	}
	for err = follow(ctx); !errors.Is(err, errEventFound); err = follow(ctx) {
		if err == nil { // the stream ends without an error if hinit ends or re-executes itself
			_, err = cl.Health(ctx)
		}
		switch {
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			return t.Fail(cmdline.ExitFailed, "cannot wait any longer: no %s within %s", *what, *timeout)
		case ctx.Err() != nil:
			return cmdline.ExitFailed
		case err != nil:
			return t.ReportError("wait", err)
		}
	}
	code = t.ShowResult(c, w.result, nil, func() { fmt.Fprintln(t.Out, show.EscapeLine(w.message)) })
	if *what == "ready" && !w.result.Service.Ready {
		return cmdline.ExitFailed
	}
	return code
}

// waitReport is the output of hinit wait.
type waitReport struct {
	Service *client.Service `json:"service"` // the service; null after a notice
	Event   *client.Event   `json:"event"`   // the event; null after a wait for a service
}

// waitState is the state of hinit wait.
type waitState struct {
	cl             *dial.Client
	noticeKey      string
	serviceAtStart client.Service // the service when the wait began; empty if a notice of any service ends the wait
	cursor         uint64         // Seq of the last read event
	result         waitReport     // the result; valid after errEventFound
	message        string         // the result as a line for people
}

// errEventFound ends the stream after the awaited event.
var errEventFound = errors.New("it came")

// awaitNotice follows the events until the awaited notice comes.
func (w *waitState) awaitNotice(ctx context.Context) error {
	o := client.EventOptions{AfterSeq: w.cursor, Follow: true}
	if w.cursor == 0 {
		o.MaxPast = -1
	}
	return w.cl.Events(ctx, o, func(e client.Event) error {
		w.cursor = max(w.cursor, e.Seq)
		if e.NoticeKey == "" || w.noticeKey != "" && e.NoticeKey != w.noticeKey || w.serviceAtStart.Name != "" && e.Service != w.serviceAtStart.Name {
			return nil
		}
		w.result.Event, w.message = &e, eventLine(e)
		return errEventFound
	})
}

// awaitService follows the status until the service is ready. If exit is true, it waits until the service has ended.
func (w *waitState) awaitService(ctx context.Context, exit bool) error {
	return w.cl.Watch(ctx, func(change client.StatusChange) error {
		for _, s := range change.Services {
			if s.Name != w.serviceAtStart.Name {
				continue
			}
			switch {
			case exit && (s.PID == 0 || s.RunNumber != w.serviceAtStart.RunNumber):
				w.message = s.Name + " has ended"
				if s.LastExit != nil {
					w.message += ": " + show.LastExitText(s.LastExit)
				}
			case !exit && s.State == client.StateUp && s.Ready:
				w.message = s.Name + " is ready"
			case !exit && (s.State == client.StateFailed || s.State == client.StateParked):
				w.message = fmt.Sprintf("%s is %s: %s", s.Name, s.State, s.Reason)
			default:
				return nil
			}
			w.result.Service = &s
			return errEventFound
		}
		if change.IsComplete {
			return fmt.Errorf("%q is gone: %w", w.serviceAtStart.Name, client.ErrUnknown)
		}
		return nil
	})
}

// eventLine formats an event as a line for people.
func eventLine(e client.Event) string {
	if e.LostCount > 0 {
		return fmt.Sprintf("(%d older events are lost)", e.LostCount)
	}
	b := &strings.Builder{}
	fmt.Fprintf(b, "%s  %s: ", e.At.Local().Format("2006-01-02 15:04:05.000"), cmp.Or(e.Service, "container"))
	switch {
	case e.Exit != nil && strings.HasSuffix(e.Reason, supervisor.SuffixProfileGone):
		fmt.Fprintf(b, "no crash: it %s (%s)", e.Reason, e.Exit.Cause)
	case e.Exit != nil:
		b.WriteString(show.RunEndText(e.Exit))
	case e.FromState != e.ToState:
		fmt.Fprintf(b, "%s → %s (%s)", e.FromState, e.ToState, e.Reason)
	default:
		b.WriteString(e.Reason)
	}
	if e.Author != nil {
		fmt.Fprintf(b, ", by %s", show.AuthorText(e.Author))
	}
	if e.PID != 0 {
		fmt.Fprintf(b, " [pid %d]", e.PID)
	}
	return b.String()
}

var drainVerb = cli.Verb{
	Name: "drain", Summary: "wait until no gateway works on an answer", Action: "wait for idle gateways", Args: "[--timeout D]",
	Run: func(t *cli.Terminal, c *cli.Call) int {
		timeout := c.Flags.Duration("timeout", 20*time.Second, "how long to wait, as `D`")
		if _, code, ok := c.Parse(t, 0, 0); !ok {
			return code
		}
		if *timeout < 0 {
			return t.Fail(cmdline.ExitUsage, "cannot %s: --timeout must not be negative", c.Action())
		}
		cfg, agent, err := loadAgent(t)
		if err != nil {
			return t.ReportError(c.Action(), err)
		}
		store := profiles.Open(cfg.Home, agent.WithTenants(cfg).HomesActor(cfg.Home), cfg.Profiles.Marker)
		ctx, cancel := context.WithTimeout(context.Background(), *timeout)
		defer cancel()
		for {
			busy, err := busyProfiles(store)
			switch {
			case err != nil:
				return t.ReportError("wait for idle gateways", err)
			case len(busy) == 0:
				return cmdline.ExitDone
			case !pause.For(ctx, 200*time.Millisecond):
				return t.Fail(cmdline.ExitFailed, "not idle within %s: %s", *timeout, strings.Join(busy, ", "))
			}
		}
	},
}

// busyProfiles describes the profiles whose gateways are working on answers. It ignores state files of ended processes.
func busyProfiles(store *profiles.Store) (busy []string, err error) {
	all, _, err := store.Discover()
	for _, p := range all {
		st, unread := store.ReadState(p.Name)
		if errors.Is(unread, fs.ErrPermission) {
			return nil, unread
		}
		if unread != nil || st.AnswersInProgress == 0 {
			continue
		}
		if process, gone := procstat.Read(st.PID); gone == nil && process.Start == st.StartTime && !process.Dead() {
			busy = append(busy, fmt.Sprintf("%s works on %d", show.EscapeName(p.Name), st.AnswersInProgress))
		}
	}
	return busy, err
}
