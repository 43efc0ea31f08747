// Command hinit-actions runs the commands and sends the web requests that hinit.yaml lists under "on" for events of services.
// It is an ordinary client of hinit's control socket, and needs no privileges. Its only goroutine waits for signals.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"hinit/client/dial"
	"hinit/internal/account"
	"hinit/internal/actions"
	"hinit/internal/cmdline"
	"hinit/internal/config"
	"hinit/internal/trust"
)

var serveVerb = cmdline.Verb{
	Program: "hinit-actions", Name: "serve", Args: "[--config FILE] [--state FILE]",
	Summary: "carry out what hinit.yaml wants done after events of services (on)",
	Help: `hinit runs it as the service hinit-actions where the file has actions. A changed file counts at once. What is to be done is kept in a file
until it is done, so it is done at least once.`,
}

func main() {
	ctx, stop := cmdline.InterruptibleContext()
	code := cmdline.RunWithOutput(func(out io.Writer) int { return run(ctx, os.Args[1:], out, os.Stderr) })
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	if len(args) > 0 && args[0] == "help" {
		args = []string{"--help"}
	}
	if len(args) > 0 && args[0] == "serve" {
		args = args[1:]
	}
	c := cmdline.NewCall(serveVerb, args, out, errs)
	path := c.Flags.String("config", "", "the configuration `FILE`; as hinit finds it when not given")
	plain := c.Flags.Bool("plain", false, "the file is that of hinit run")
	file := c.Flags.String("state", os.Getenv("HINIT_ACTIONS_STATE"),
		"`FILE` of what was seen and is to be done (HINIT_ACTIONS_STATE; .hinit-actions.json in the data directory)")
	if _, code, ok := c.Parse(0, 0); !ok {
		return code
	}
	rules := &configFile{options: config.Options{Path: *path, ServicesOnly: *plain}, path: *path}
	cfg, err := rules.read()
	if err != nil {
		return c.Fail(cmdline.ExitFailed, "cannot carry out actions: %v; the user that they run as has to be able to read the file", err)
	}
	if *file == "" {
		*file = filepath.Join(cfg.Home, ".hinit-actions.json")
	}
	if err := checkTrusted(cfg, *plain, cfg.Path, *file); err != nil {
		return c.Fail(cmdline.ExitFailed, "cannot carry out actions: %v", err)
	}
	rules.size = -1 // the first call of readIfChanged must return the configuration
	host, _ := os.Hostname()
	r := &actions.Runner{
		Watch:      dial.ForThisContainer(cfg.Control.Socket, os.LookupEnv).Watch,
		ReadConfig: rules.readIfChanged, StateFile: *file, Host: host, Log: slog.New(slog.NewTextHandler(errs, nil)),
	}
	return c.ReportError("carry out actions", r.Run(ctx))
}

// checkTrusted returns an error if a user other than root or the current user can change or make one of the files in paths.
// This process runs the commands in these files, so other users must not be able to add one. Two callers may use files that the
// agent can change: the agent's own user, and a user other than root who runs `hinit run` (plain).
func checkTrusted(cfg *config.Config, plain bool, paths ...string) error {
	uid := os.Geteuid()
	if agent, err := account.Lookup("", cfg.Agent.User); plain && uid != 0 || !plain && err == nil && int(agent.UID) == uid {
		return nil
	}
	for _, path := range paths {
		path, err := filepath.Abs(path)
		if err != nil {
			return err
		}
		if violation, _ := trust.Check(path, trust.OwnedBy(uint32(uid))); violation != nil { // a missing file is allowed
			return fmt.Errorf("uid %d does not run the commands in %q, because others can change it: %s %s; name another file (HINIT_CONFIG, HINIT_ACTIONS_STATE), or run it as %s",
				uid, path, violation.Path, violation.Why, cfg.Agent.User)
		}
	}
	return nil
}

// configFile is the configuration file, which is read again after a change.
type configFile struct {
	options config.Options
	path    string
	size    int64
	modTime time.Time
}

// readIfChanged returns the configuration if its file has changed since the last call, and otherwise nil.
func (r *configFile) readIfChanged() (*config.Config, error) {
	fi, err := os.Stat(r.path)
	if err == nil && fi.Size() == r.size && fi.ModTime().Equal(r.modTime) {
		return nil, nil
	}
	return r.read()
}

// read reads the configuration. It first records the size and time of the file, so that even an invalid file is not read again
// until it changes.
func (r *configFile) read() (*config.Config, error) {
	for {
		if fi, err := os.Stat(r.path); err == nil {
			r.size, r.modTime = fi.Size(), fi.ModTime()
		}
		c, err := config.Load(r.options)
		if err != nil || c.Path == r.path {
			return c, err
		}
		r.path = c.Path
	}
}
