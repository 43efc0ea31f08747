package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"text/tabwriter"

	"hinit/client"
	"hinit/internal/boot"
	"hinit/internal/cmdline"
	"hinit/internal/config"
	"hinit/internal/control/show"
)

func configVerb() verb {
	return verb{
		name: "config", doing: "show the configuration", args: "[check [FILE] | schema] [--run] [--json]", summary: "print the effective configuration and where each value came from",
		help: `Of the running init; when none is reachable, of the file and the environment as they are here.
"hinit config check" reads a file (the one that hinit would read, or FILE) with the environment as it is here, without an
init, and prints all that is wrong with it, a line each; the exit code is 1 then. With --run it is a file for hinit run.
"hinit config schema" prints a JSON schema of hinit.yaml, for editors.`,
		run: configRun,
	}
}

func configRun(t *terminal, c *call) int {
	asJSON := c.flags.Bool("json", false, "print JSON")
	plain := c.flags.Bool("run", false, "check it as hinit run reads it")
	words, code, ok := c.parse(t, 0, 2)
	if !ok {
		return code
	}
	if len(words) > 0 {
		if words[0] == "schema" && len(words) == 1 {
			fmt.Fprint(t.out, config.Schema)
			return exitDone
		}
		if words[0] != "check" {
			return t.fail(exitUsage, "cannot show the configuration: expected: hinit config %s%s", c.verb.args, cmdline.DidYouMean(words[0], []string{"check", "schema"}))
		}
		return configCheck(t, append(words, "")[1], *plain, *asJSON)
	}
	if *plain {
		return t.fail(exitUsage, "cannot show the configuration: --run is of hinit config check")
	}
	entries, here, err := t.effective()
	if err != nil {
		return t.failed("show the configuration", err)
	}
	if here {
		fmt.Fprintln(t.err, "hinit is not reachable, so these are the values of the file and the environment here")
	}
	if *asJSON {
		return t.failed(c.doing(), writeJSON(t.out, entries))
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
	return t.failed(c.doing(), tw.Flush())
}

// valueWidth is how wide the values of a configuration may make their column.
const valueWidth = 48

// configReport lists the faults of a configuration.
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
func configCheck(t *terminal, file string, plain, asJSON bool) int {
	report := configReport{File: file, Problems: []configProblem{}, Warnings: []string{}}
	cfg, err := config.Load(config.Options{Path: file, Plain: plain, Env: t.env})
	var problems []error
	if err == nil {
		report.File, report.Warnings = cfg.Path, append(report.Warnings, slices.Concat(cfg.Warnings, usersMissing(cfg, plain))...)
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
func usersMissing(cfg *config.Config, plain bool) (warnings []string) {
	agent := boot.Caller()
	if !plain {
		var err error
		if agent, err = boot.LookupAgent(cfg); err != nil {
			return []string{err.Error()}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Services)) {
		if _, err := agent.CredFor(cfg, cfg.Services[name].User); err != nil {
			warnings = append(warnings, fmt.Sprintf("cannot define service %q: %v", name, err))
		}
	}
	return warnings
}

// effective returns the configuration of the running init, or where none is reachable that of the file and the environment here.
// Who may not ask the init gets no other answer instead.
func (t *terminal) effective() (entries []client.ConfigEntry, here bool, err error) {
	entries, err = ask(t, shortWait, func(ctx context.Context, cl *client.Client) ([]client.ConfigEntry, error) { return cl.Config(ctx) })
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
