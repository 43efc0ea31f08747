package tools

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
)

var explainVerb = cli.Verb{
	Name: "explain", Action: "explain a service", SelectsServices: true, Args: "NAME... | --state STATE [--json]",
	Summary: "explain why a service is in its state, what happens next, and what to type",
	Run:     withArgs(1, -1, explainServices),
}

// explanation is the output of hinit explain for one service. Its texts are for people.
type explanation struct {
	Name       string   `json:"name"`
	State      string   `json:"state"` // state and its duration, with "(crash-loop)" in a crash loop
	Reasons    []string `json:"why"`
	StatusText string   `json:"says"` // status text of the service itself; "" without one
	Tail       []string `json:"tail"` // last log lines, if they may show the cause
	NextStep   string   `json:"next"` // hinit's next action without an order
	Commands   []advice `json:"type"` // commands to type, the most useful first

	Settings []client.ConfigEntry `json:"settings"` // settings that differ from the defaults
}

// advice is a command that the user can type, and its effect.
type advice struct {
	Command string `json:"command"`
	Effect  string `json:"for"`
}

func explainServices(t *cli.Terminal, c *cli.Call, names []string) int {
	doing := fmt.Sprintf("explain %q", strings.Join(names, " "))
	orders := make(map[string]string) // the last order to each service
	st, err := t.Status(names...)
	if err == nil {
		err = t.Client().Events(context.Background(), client.EventOptions{}, func(e client.Event) error {
			if e.Author != nil {
				orders[e.Service] = fmt.Sprintf("the last order, %s ago: %s, by %s", show.FormatDuration(time.Since(e.At)), e.Reason, show.AuthorText(e.Author))
			}
			return nil
		})
	}
	if err != nil {
		return t.ReportError(doing, err)
	}
	code := cmdline.ExitDone
	for i, s := range st.Services {
		if i > 0 && !c.JSON {
			fmt.Fprintln(t.Out)
		}
		if s.State != client.StateUp && c.IsNamed(&s) {
			code = cmdline.ExitNotUp
		}
		e := explain(s, time.Now())
		if order := orders[s.Name]; order != "" {
			e.Reasons = append(e.Reasons, order)
		}
		if c.JSON {
			code = max(code, t.ReportError(doing, cmdline.WriteJSON(t.Out, e, "  ")))
			continue
		}
		e.print(t)
	}
	return code
}

func (e explanation) print(t *cli.Terminal) {
	fmt.Fprintf(t.Out, "%s is %s\n", show.EscapeName(e.Name), e.State)
	line := func(label, text string) { fmt.Fprintf(t.Out, "  %-6s %s\n", label, show.EscapeLine(text)) }
	lineOf := func(i int, label, text string) { // of several lines, only the first has the label
		if i > 0 {
			label = ""
		}
		line(label, text)
	}
	for i, why := range e.Reasons {
		lineOf(i, "why", why)
	}
	for _, last := range e.Tail {
		line("", "| "+last)
	}
	if e.StatusText != "" {
		line("says", e.StatusText)
	}
	for i := range e.Settings {
		lineOf(i, "set", show.SettingText(&e.Settings[i]))
	}
	line("next", e.NextStep)
	for i, a := range e.Commands {
		lineOf(i, "type", fmt.Sprintf("%-32s %s", a.Command, a.Effect))
	}
}

// nextWhenUp describes hinit's next action for a service that is up, and its action at the end of the process.
func nextWhenUp(s client.Service) string {
	switch {
	case s.Task && s.Restart == "on-failure":
		return "nothing; it ends by itself, and is tried again when it fails"
	case s.Task:
		return "nothing; it ends by itself"
	case s.Restart == "never":
		return "nothing, not even when it ends (restart: never)"
	case s.Restart != "":
		return "nothing; when it ends it is started again as its policy says (restart: " + s.Restart + ")"
	}
	return "nothing; when it ends it is started again"
}

// explain explains the status of a service.
func explain(s client.Service, now time.Time) explanation {
	e := explanation{
		Name: s.Name, State: s.State, Reasons: []string{}, StatusText: s.StatusText, Tail: []string{}, Commands: []advice{},
		Settings: append([]client.ConfigEntry{}, s.Settings...),
	}
	if s.CrashLoop {
		e.State += " (crash-loop)"
	}
	e.State += ", since " + show.FormatDuration(now.Sub(s.Since))
	name := cmdline.ShellQuote(cmp.Or(s.Profile, s.Name)) // users copy the commands below into a shell, so quote the name
	say := func(text string) {
		if text != "" {
			e.Reasons = append(e.Reasons, text)
		}
	}
	propose := func(cmd, use string) { e.Commands = append(e.Commands, advice{"hinit " + cmd + " " + name, use}) }
	ended := s.State != client.StateUp && s.LastExit != nil

	if !strings.Contains(s.Problem, s.Reason) {
		say(s.Reason)
	}
	say(s.Problem)
	for i := range s.Checks {
		if c := &s.Checks[i]; c.State != client.CheckOnHold && c.State != "passing" {
			say("check " + c.Name + " " + show.CheckText(c))
		}
	}
	if s.Output != nil {
		say(s.Output.Error)
	}
	if s.Drifted {
		say("it runs as an older configuration says")
	}
	if s.Paused {
		say("a signal has stopped its process, such as SIGSTOP")
	}
	if ended {
		say("its last run ended: " + show.LastExitText(s.LastExit))
		e.Tail = append(e.Tail, s.LastExit.Tail[max(0, len(s.LastExit.Tail)-5):]...)
	}
	if s.Want == client.WantDown && !s.Task && (s.Restart == "" || s.LastExit == nil) {
		say("it is not wanted up: an order has stopped it, or it was down before the container started")
	}

	switch s.State {
	case client.StateUp:
		e.NextStep = nextWhenUp(s)
		switch {
		case s.Drifted:
			propose("restart", "run it with the present configuration")
		case s.Paused:
			e.Commands = append(e.Commands, advice{fmt.Sprintf("kill -CONT %d", s.PID), "resume it"})
			propose("restart", "end it and start it again")
		case !s.Ready:
			e.NextStep = "hinit waits until it reports that it is ready"
		}
	case client.StateBackoff:
		e.NextStep = "it is started again"
		if s.NextStart != nil {
			e.NextStep += " in " + show.FormatDuration(max(s.NextStart.Sub(now), 0))
		}
		propose("start", "start it now")
	case client.StateWaiting:
		e.NextStep = "it starts when " + strings.Join(s.Needs, ", ") + " is there"
		switch {
		case strings.HasPrefix(s.Reason, "waits for its turn"):
			e.NextStep = "it starts when the services before it are ready"
		case len(s.Needs) == 0:
			e.NextStep = "it starts when the boot comes to it"
		}
	case client.StateParked:
		e.NextStep = "nothing until its configuration changes, or it is started"
		propose("start", "start it now")
	case client.StateFailed:
		e.NextStep = "nothing until it is started" + show.NextRun(", or by its schedule in ", &s, now)
		if s.Task {
			propose("run-once", "try again, when what is wrong has been mended")
			break
		}
		propose("start", "try again, when what is wrong has been mended")
	case client.StateDown:
		e.NextStep = "nothing until it is started"
		if s.Want == client.WantUp {
			e.NextStep = "it is started"
		}
		if s.Task {
			e.NextStep += show.NextRun(", or by its schedule in ", &s, now)
			propose("run-once", "run it now")
			break
		}
		if s.ServedBy == client.ServedByDefault || s.ServedBy == client.ServedByDefaultExpected {
			e.NextStep = "nothing: the gateway of the default profile serves it"
			e.Commands = append(e.Commands, advice{"hinit topology", "show why, and which gateway serves the others"})
			propose("start --force", "start its own gateway beside")
			break
		}
		propose("start", "start it")
	case client.StateStarting:
		e.NextStep = "it is up as soon as its process runs"
	default: // the service is stopping, killing or finishing
		e.NextStep = "it is down when nothing of it is left; then it is started again if it is wanted"
	}
	if s.Log != "" || s.State == client.StateUp {
		propose("logs", "what it wrote")
	}
	propose("events", "what happened to it")
	return e
}
