package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/boot"
	"hinit/internal/boot/lookup"
	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/config"
	"hinit/internal/control/show"
	"hinit/internal/proc"
)

var configVerb = cli.Verb{
	Name: "config", Action: "show the configuration", Args: "[check [FILE] | schema] [--run] [--json]",
	Summary: "print the effective configuration and where each value came from",
	Run:     configRun,
}

func configRun(t *cli.Terminal, c *cli.Call) int {
	plain := c.Flags.Bool("run", false, "check it as hinit run reads it")
	words, code, ok := c.Parse(t, 0, 2)
	if !ok {
		return code
	}
	var word, file string
	if len(words) > 0 {
		word = words[0]
	}
	if len(words) > 1 {
		file = words[1]
	}
	switch {
	case word == "schema" && len(words) == 1:
		fmt.Fprint(t.Out, config.JSONSchema)
		return cmdline.ExitDone
	case word == "check":
		return configCheck(t, file, *plain, c.JSON)
	case word != "":
		return t.Fail(cmdline.ExitUsage, "cannot show the configuration: expected: hinit config %s%s", c.Verb.Args, cmdline.DidYouMean(word, []string{"check", "schema"}))
	case *plain:
		return t.Fail(cmdline.ExitUsage, "cannot show the configuration: --run is of hinit config check")
	}
	entries, err := t.Client().Config(context.Background())
	if errors.Is(err, client.ErrUnreachable) {
		var cfg *config.Config
		if cfg, err = t.Config(); err == nil {
			fmt.Fprintln(t.Err, "hinit is not reachable, so these are the values of the file and the environment here")
			entries = cfg.Effective()
		}
	}
	return t.ShowResult(c, entries, err, func() {
		tw := tabwriter.NewWriter(t.Out, 0, 0, 2, ' ', 0)
		for _, e := range entries {
			value, _ := json.Marshal(e.Value)
			gap := "\t"
			if len(value) > maxValueWidth {
				gap = "  " // without a tab, a long value doesn't widen the column
			}
			fmt.Fprintf(tw, "%s\t%s%s(%s)\n", show.EscapeLine(e.Key), cmdline.EscapeJSON(value), gap, show.EscapeLine(e.Origin))
		}
		tw.Flush()
	})
}

// maxValueWidth is the maximum width of the column with the values.
const maxValueWidth = 48

// configReport is the result of hinit config check.
type configReport struct {
	File     string          `json:"file"`     // "" if there is none and the defaults apply
	OK       bool            `json:"ok"`       // hinit would start with this configuration
	Problems []configProblem `json:"problems"` // mistakes that prevent a start
	Warnings []string        `json:"warnings"` // remarks, and missing users and files
}

// configProblem is one mistake in the configuration.
type configProblem struct {
	File    string `json:"file"` // "" if an environment variable has the mistake
	Line    int    `json:"line"` // line of the mistake; 0 if unknown
	Message string `json:"message"`
}

// configCheck reads a configuration and prints all mistakes in it.
func configCheck(t *cli.Terminal, file string, plain, asJSON bool) int {
	report := configReport{File: file, Problems: []configProblem{}, Warnings: []string{}}
	cfg, err := config.Load(config.Options{Path: file, ServicesOnly: plain, Env: t.Env})
	if err == nil && plain && len(cfg.Services) == 0 {
		err = config.NoServicesError(cfg.Path)
	}
	var problems []error
	if err == nil {
		report.File, report.Warnings = cfg.Path, append(report.Warnings, slices.Concat(cfg.Warnings, missingFiles(cfg, plain))...)
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
	code := cmdline.ExitFailed
	if len(problems) == 0 {
		report.OK, code = true, cmdline.ExitDone
	}
	if asJSON {
		return max(code, t.ReportError("check the configuration", cmdline.WriteJSON(t.Out, report, "  ")))
	}
	for _, problem := range problems {
		fmt.Fprintln(t.Err, show.EscapeLine(problem.Error()))
	}
	for _, warning := range report.Warnings {
		fmt.Fprintln(t.Err, "warning:", show.EscapeLine(warning))
	}
	if report.OK {
		fmt.Fprintf(t.Out, "%s: ok\n", cmp.Or(show.EscapeLine(report.File), "no configuration file, the defaults hold"))
	}
	return code
}

// missingFiles returns warnings about missing users and files in the configuration: programs, directories, and environment
// files of services that start. They may still exist in the container.
func missingFiles(cfg *config.Config, plain bool) (warnings []string) {
	agent := boot.CallerAsAgent()
	if !plain {
		var err error
		if agent, err = lookup.Agent(cfg); err != nil {
			return []string{err.Error()}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Services)) {
		s := cfg.Services[name]
		if _, err := agent.CredFor(cfg, s.User); err != nil {
			warnings = append(warnings, fmt.Sprintf("cannot define service %q: %v", name, err))
		}
		check := func(key, path string, err error) {
			if strings.Contains(path, "/") && !filepath.IsAbs(path) && path[0] != '-' {
				path = filepath.Join(s.Cwd, path)
			}
			if err = cmp.Or(err, unix.Access(path, unix.F_OK)); err != nil && s.Enabled && path[0] != '-' {
				warnings = append(warnings, fmt.Sprintf("cannot start service %q: its %s %s is not here: %v", name, key, path, err))
			}
		}
		program, err := proc.LookPath(s.Command[0], proc.SetEnv(boot.ContainerEnv(cfg.Home), s.Env))
		check("command", cmp.Or(program, s.Command[0]), err)
		check("cwd", s.Cwd, nil)
		for _, file := range s.EnvFile {
			check("env_file", file, nil)
		}
	}
	return warnings
}
