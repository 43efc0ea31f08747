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
	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
	"hinit/internal/procusage"
	"hinit/internal/reexec"
	"hinit/internal/s6/formats"
)

var signalVerb = cli.Verb{
	Name: "signal", Summary: "send a signal to the main process of a service", Action: "send a signal", Args: "NAME... SIGNAL [--json]",
	SelectsServices: true, OtherArgCount: 1, Run: withArgs(2, -1, func(t *cli.Terminal, c *cli.Call, words []string) int {
		names, word := words[:len(words)-1], words[len(words)-1]
		if _, known := formats.ParseSignal(word); !known {
			return t.Fail(cmdline.ExitUsage,
				"cannot send a signal: %q is no signal; write a name such as HUP or a number from 1 to 64, after the names of services", word)
		}
		return sendSignals(t, "signal", names, c.JSON, func(client.Service) (string, error) { return word, nil })
	}),
}

// sendSignals sends each service the signal from which. verb is the name of the command in messages.
func sendSignals(t *cli.Terminal, verb string, names []string, asJSON bool, which func(client.Service) (string, error)) int {
	worst, cl, ctx := cmdline.ExitDone, t.Client(), context.Background()
	for _, name := range names {
		word := ""
		s, err := cl.Service(ctx, name)
		if err == nil {
			word, err = which(s)
		}
		number, _ := formats.ParseSignal(word)
		pid := s.PID
		if err == nil {
			s, err = cl.Signal(ctx, name, syscall.Signal(number))
		}
		switch {
		case err != nil:
			worst = max(worst, t.ReportError(fmt.Sprintf("%s %q", verb, name), err))
		case asJSON:
			worst = max(worst, t.ReportError(verb, cmdline.WriteJSON(t.Out, s, "")))
		default:
			fmt.Fprintf(t.Out, "%s was sent %s (pid %d)\n", show.EscapeName(s.Name), show.SignalName(number), pid)
		}
	}
	return worst
}

var reloadVerb = cli.Verb{
	Name: "reload", Args: "[NAME... | --state STATE] [--dry-run] [--force] [--json]", SelectsServices: true,
	Summary: "read hinit.yaml again and apply it, or have the named services read their own configuration",
	Run:     reloadConfig,
}

func reloadConfig(t *cli.Terminal, c *cli.Call) int {
	var how client.Reload
	c.Flags.BoolVar(&how.DryRun, "dry-run", false, "print what it would do, and do nothing")
	c.Flags.BoolVar(&how.Force, "force", false, "if hinit.yaml is gone, stop the services that were in it")
	names, code, ok := c.Parse(t, 0, -1)
	switch {
	case !ok:
		return code
	case len(names) > 0 && how != (client.Reload{}):
		return t.Fail(cmdline.ExitUsage, "cannot reload: --dry-run and --force are for hinit.yaml, not for services")
	case len(names) > 0:
		return reloadServices(t, names, c.JSON)
	}
	did, err := t.Client().Reload(context.Background(), how)
	if clientErr := (*client.Error)(nil); errors.As(err, &clientErr) && strings.Contains(clientErr.Message, "\n") {
		code := cmdline.ExitDone
		for line := range strings.SplitSeq(clientErr.Message, "\n") {
			one := *clientErr
			one.Message = line
			code = t.ReportError("reload", &one)
		}
		return code
	}
	return t.ShowResult(c, did, err, func() {
		for _, s := range did.Plan {
			fmt.Fprintln(t.Out, s.Op, show.EscapeLine(s.Service), s.Effect)
		}
		for _, key := range did.Settings {
			fmt.Fprintln(t.Out, "changed:", show.EscapeLine(key))
		}
		switch {
		case len(did.Plan)+len(did.Changes) == 0:
			fmt.Fprintln(t.Out, "nothing has changed")
		case how.DryRun:
			fmt.Fprintln(t.Out, "this was a dry run: nothing was changed")
		}
	})
}

// reloadServices sends each named service its reload signal from the configuration of the running init.
func reloadServices(t *cli.Terminal, names []string, asJSON bool) int {
	entries, err := t.Client().Config(context.Background())
	if err != nil {
		return t.ReportError("reload", err)
	}
	signals := make(map[string]string) // reload signals by the key that sets them: services.NAME, profiles.NAME or agent
	for _, e := range entries {
		if path, is := strings.CutSuffix(e.Key, ".reload_signal"); is {
			signals[path], _ = e.Value.(string)
		}
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

var runOnceVerb = cli.Verb{
	Name: "run-once", Action: "run a task once", Args: "NAME... | --state STATE [--no-wait] [--timeout 1h] [--json]",
	Summary:         "run a task now, and wait until it has ended",
	SelectsServices: true, Run: runOnce,
}

func runOnce(t *cli.Terminal, c *cli.Call) int {
	noWait := c.Flags.Bool("no-wait", false, "do not wait for the end")
	timeout := c.Flags.Duration("timeout", time.Hour, "how long to wait for the end, as `D`; an hour at most")
	names, code, ok := c.Parse(t, 1, -1)
	switch {
	case !ok:
		return code
	case *timeout <= 0 || *timeout > time.Hour:
		return t.Fail(cmdline.ExitUsage, "cannot run a task once: --timeout must be positive, and at most 1h")
	}
	ctx, cancel := cmdline.InterruptibleContext()
	defer cancel()
	begin := time.Now()
	cl, err := t.DialDuringStart(ctx, min(*timeout, cli.BootTimeout))
	if err != nil {
		return t.ReportError(fmt.Sprintf("run %q once", names[0]), err)
	}
	wait := client.WaitOptions{Wait: !*noWait, Timeout: max(*timeout-time.Since(begin), time.Millisecond)}
	return t.Order(ctx, cl, c, "run %q once", names, wait, begin, func(s client.Service, doing string) int {
		if s.LastExit != nil && !c.JSON {
			for _, line := range s.LastExit.Tail {
				fmt.Fprintln(t.Out, show.EscapeLine(line))
			}
			if s.Done {
				fmt.Fprintln(t.Out, show.TaskResultText(s))
			}
		}
		if !s.Done {
			return t.Fail(cmdline.ExitFailed, "cannot %s: %s", doing, show.TaskResultText(s))
		}
		return cmdline.ExitDone
	})
}

var reexecVerb = cli.Verb{
	Name: "reexec", Action: "re-execute hinit", Args: "[--binary FILE] [--json]",
	Summary: "replace the running hinit by the binary in its place; services keep running",
	Run:     reexecute,
}

// reexecReport is the output of hinit reexec.
type reexecReport struct {
	Version       string `json:"version"` // present version
	Generation    int    `json:"image"`   // program number: 1 at first, one more after each re-execution
	OldVersion    string `json:"before"`  // version before the re-execution
	Binary        string `json:"binary"`
	FileUnchanged bool   `json:"same"` // the file has not changed
}

func reexecute(t *cli.Terminal, c *cli.Call) int {
	file := c.Flags.String("binary", "", "become this `FILE` (default: the one the running hinit was started from)")
	if _, code, ok := c.Parse(t, 0, 0); !ok {
		return code
	}
	cl := t.Client()
	ctx, cancel := cmdline.InterruptibleContext()
	defer cancel()
	before, err := cl.Status(ctx)
	if err != nil {
		return t.ReportError("re-execute hinit", err)
	}
	path := cmp.Or(*file, before.Init.Binary)
	// Compare the files before the re-execution. After it, hinit always runs this file.
	same := initRunsFile(t, before.Init, path)
	after, err := cl.Reexec(ctx, *file)
	report := reexecReport{Version: after.Version, Generation: after.Generation, OldVersion: before.Init.Version, Binary: path, FileUnchanged: same}
	return t.ShowResult(c, report, err, func() {
		what := fmt.Sprintf(" (it was %s)", report.OldVersion)
		if same {
			what = fmt.Sprintf(": same binary as before, %s; nothing changed", path)
		}
		fmt.Fprintf(t.Out, "hinit %s is image %d now%s\n", report.Version, report.Generation, what)
	})
}

// initRunsFile reports whether the init runs the file at path; false if unknown. From outside the container, inode numbers mean
// other files.
func initRunsFile(t *cli.Terminal, in client.Init, path string) bool {
	return in.BinaryID != "" && in.BinaryID == reexec.FileID(path) && procPathOf(t, in.PID) == "/proc"
}

// procPathOf returns the path of a /proc with the processes of the init, see [procusage.FindProc]. If the path is "/proc", a
// PID in the status means the same process for this command.
func procPathOf(t *cli.Terminal, pid int) string {
	cl, err := t.Dial()
	if err != nil {
		return ""
	}
	return procusage.FindProc(cl.Socket(), pid)
}
