package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"hinit/client"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/control/show"
	"hinit/internal/version"
)

// shortWait bounds the verbs that ask one quick question.
const shortWait = 5 * time.Second

func initVerb() verb {
	return verb{
		name: "init", args: "[--] [CMD...]", summary: "be the init: PID 1 of a container, or a subreaper elsewhere",
		help: `Called as /init or tini, hinit does this without being told. Everything after init is the
container's CMD: an executable is run as it is, anything else is given to the agent,
"gateway run" supervises the gateway, and no words at all start the agent.`,
		run: func(t *terminal, c *call) int {
			if len(c.raw) == 1 && (c.raw[0] == "--help" || c.raw[0] == "-h") {
				c.usage(t.out)
				return exitDone
			}
			return initMain("hinit", c.raw)
		},
	}
}

func versionVerb() verb {
	return verb{
		name: "version", args: "[--json]", summary: "print the version",
		run: func(t *terminal, c *call) int {
			asJSON := c.flags.Bool("json", false, "print JSON")
			handover := c.flags.Bool("handover", false, "print the format in which it takes over from a running hinit instead")
			if _, code, ok := c.parse(t, 0, 0); !ok {
				return code
			}
			if *handover {
				return showHandover(t)
			}
			if !*asJSON {
				fmt.Fprintln(t.out, "hinit", version.Get())
			} else if err := writeJSON(t.out, version.Get()); err != nil {
				return t.failed("show the version", err)
			}
			return exitDone
		},
	}
}

func reloadVerb() verb {
	return verb{
		name: "reload", args: "[--dry-run] [--force] [--json]",
		summary: "read hinit.yaml again and apply it: what is new starts, what is gone stops",
		help: `Prints a line for each service that it touches: + it starts, ~ it is changed, - it stops. A service that runs and is
changed goes on as it was until it is restarted (hinit restart --changed). A file with a mistake changes nothing.`,
		run: reload,
	}
}

func reload(t *terminal, c *call) int {
	var how client.Reload
	c.flags.BoolVar(&how.DryRun, "dry-run", false, "print what it would do, and do nothing")
	c.flags.BoolVar(&how.Force, "force", false, "if hinit.yaml is gone, stop the services that were in it")
	asJSON := c.flags.Bool("json", false, "print JSON")
	if _, code, ok := c.parse(t, 0, 0); !ok {
		return code
	}
	cl, err := t.dial()
	if err != nil {
		return t.failed("reload", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	did, err := cl.Reload(ctx, how)
	if said := (*client.Error)(nil); errors.As(err, &said) && strings.Contains(said.Message, "\n") {
		code := exitDone
		for line := range strings.SplitSeq(said.Message, "\n") { // a mistake a line
			one := *said
			one.Message = line
			code = t.failed("reload", &one)
		}
		return code
	}
	if err != nil {
		return t.failed("reload", err)
	}
	if *asJSON {
		if err := writeJSON(t.out, did); err != nil {
			return t.failed("reload", err)
		}
		return exitDone
	}
	for _, s := range did.Plan {
		fmt.Fprintln(t.out, s.Op, show.Line(s.Service), s.What)
	}
	for _, key := range did.Settings {
		fmt.Fprintln(t.out, "changed:", show.Line(key))
	}
	switch {
	case len(did.Plan)+len(did.Changes) == 0:
		fmt.Fprintln(t.out, "nothing has changed")
	case how.DryRun:
		fmt.Fprintln(t.out, "this was a dry run: nothing was changed")
	}
	return exitDone
}

func configVerb() verb {
	return verb{
		name: "config", args: "[check [FILE]] [--json]", summary: "print the effective configuration and where each value came from",
		help: `Of the running init; when none is reachable, of the file and the environment as they are here.
"hinit config check" reads a file (the one that hinit would read, or FILE) with the environment as it is here, without an
init, and prints all that is wrong with it, a line each; the exit code is 1 then.`,
		run: configRun,
	}
}

func configRun(t *terminal, c *call) int {
	asJSON := c.flags.Bool("json", false, "print JSON")
	words, code, ok := c.parse(t, 0, 2)
	if !ok {
		return code
	}
	if len(words) > 0 {
		if words[0] != "check" {
			return t.fail(exitUsage, "cannot show the configuration: expected: hinit config %s", c.verb.args)
		}
		return configCheck(t, append(words, "")[1], *asJSON)
	}
	entries, here, err := t.effective()
	if err != nil {
		return t.failed("show the configuration", err)
	}
	if here {
		fmt.Fprintln(t.err, "hinit is not reachable, so these are the values of the file and the environment here")
	}
	if *asJSON {
		if err := writeJSON(t.out, entries); err != nil {
			return t.failed("show the configuration", err)
		}
		return exitDone
	}
	tw := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
	for _, e := range entries {
		value, err := json.Marshal(e.Value)
		if err != nil {
			return t.failed("show the configuration", err)
		}
		gap := "\t"
		if len(value) > valueWidth {
			gap = "  " // a long value does not move all the others
		}
		fmt.Fprintf(tw, "%s\t%s%s(%s)\n", show.Line(e.Key), show.JSON(value), gap, show.Line(e.Origin))
	}
	if err := tw.Flush(); err != nil {
		return t.failed("show the configuration", err)
	}
	return exitDone
}

// valueWidth is how wide the values of a configuration may make their column.
const valueWidth = 48

// configReport is what is wrong with a configuration.
type configReport struct {
	File     string          `json:"file"`     // "" where there is none, and the defaults hold
	OK       bool            `json:"ok"`       // hinit would start with it
	Problems []configProblem `json:"problems"` // why it would not
	Warnings []string        `json:"warnings"` // what it would start without
}

// configProblem is one mistake.
type configProblem struct {
	File    string `json:"file"`    // "" where a variable of the environment is at fault
	Line    int    `json:"line"`    // 0 where none is
	Message string `json:"message"` // what is wrong, and with which key
}

// configCheck reads a configuration and tells all that is wrong with it.
func configCheck(t *terminal, file string, asJSON bool) int {
	report := configReport{File: file, Problems: []configProblem{}, Warnings: []string{}}
	cfg, err := config.Load(config.Options{Path: file, Env: t.env})
	var problems []error
	if err == nil {
		report.File, report.Warnings = cfg.Path, append(report.Warnings, slices.Concat(cfg.Warnings, usersMissing(cfg))...)
	} else if joined, ok := err.(interface{ Unwrap() []error }); ok {
		problems = joined.Unwrap()
	} else {
		problems = []error{err}
	}
	for _, problem := range problems {
		p := configProblem{Message: problem.Error()}
		if at := (*config.Problem)(nil); errors.As(problem, &at) {
			p = configProblem{File: at.File, Line: at.Line, Message: at.Msg}
			report.File = cmp.Or(report.File, at.File)
		}
		report.Problems = append(report.Problems, p)
	}
	report.OK = len(problems) == 0
	code := exitDone
	if !report.OK {
		code = exitFailed
	}
	if asJSON {
		if err := writeJSON(t.out, report); err != nil {
			return t.failed("check the configuration", err)
		}
		return code
	}
	for _, problem := range problems {
		fmt.Fprintln(t.err, show.Line(problem.Error()))
	}
	for _, warning := range report.Warnings {
		fmt.Fprintln(t.err, "warning:", show.Line(warning))
	}
	if report.OK {
		fmt.Fprintf(t.out, "%s: ok\n", cmp.Or(show.Line(report.File), "no configuration file, the defaults hold"))
	}
	return code
}

// usersMissing says which users of a configuration nobody here is. The container may have them.
func usersMissing(cfg *config.Config) (warnings []string) {
	agent, err := boot.LookupAgent(cfg)
	if err != nil {
		return []string{err.Error()}
	}
	for _, name := range sortedKeys(cfg.Services) {
		if _, err := agent.CredFor(cfg, cfg.Services[name].User); err != nil {
			warnings = append(warnings, fmt.Sprintf("cannot define service %q: %v", name, err))
		}
	}
	return warnings
}

// effective returns the configuration of the running init, or where none is reachable that of the file and the environment here.
// Who may not ask the init gets no other answer instead.
func (t *terminal) effective() (entries []client.ConfigEntry, here bool, err error) {
	cl, err := t.dial()
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), shortWait)
		defer cancel()
		entries, err = cl.Config(ctx)
	}
	if !errors.Is(err, client.ErrUnreachable) {
		return entries, false, err
	}
	cfg, err := t.config()
	if err != nil {
		return nil, true, err
	}
	for _, e := range cfg.Effective() {
		entries = append(entries, client.ConfigEntry{Key: e.Key, Value: e.Value, Origin: e.Origin})
	}
	return entries, true, nil
}

func healthcheckVerb() verb {
	return verb{
		name: "healthcheck", args: "[--json]", summary: "exit 0 when the init does its work; for Docker's HEALTHCHECK",
		help: "A gateway in trouble is named, but is no reason to restart the container of all the others.\n" +
			"Until the boot is over it fails: give Docker a --health-start-period as long as the boot's hooks may take.",
		run: func(t *terminal, c *call) int {
			asJSON := c.flags.Bool("json", false, "print JSON")
			if _, code, ok := c.parse(t, 0, 0); !ok {
				return code
			}
			cl, err := t.dial()
			if err != nil {
				return t.failed("check the health", err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), shortWait)
			defer cancel()
			h, err := cl.Health(ctx)
			if err == nil && *asJSON {
				err = writeJSON(t.out, h)
			}
			switch {
			case err != nil:
				return t.failed("check the health", err)
			case *asJSON && h.OK:
				return exitDone
			case *asJSON:
				return exitFailed
			case !h.OK:
				return t.fail(exitFailed, "unhealthy: %s", h.Reason)
			}
			fmt.Fprintf(t.out, "healthy, %d of %d wanted services are up\n", h.Up, h.Wanted)
			for _, name := range h.Troubled {
				fmt.Fprintln(t.out, "in trouble:", show.Line(name))
			}
			return exitDone
		},
	}
}
