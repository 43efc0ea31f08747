// Command hinit-actions runs the commands and sends the web requests that hinit.yaml lists under "on", after events of services. It
// asks hinit over the control socket as any client does, and needs no privileges. It picks its arguments apart and owns no goroutine but the one that waits for signals.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"hinit/client"
	"hinit/internal/actions"
	"hinit/internal/boot"
	"hinit/internal/config"
)

// The exit codes, as those of hinit.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

const help = `usage: hinit-actions serve [--config FILE] [--state FILE]

carry out what hinit.yaml wants done after events of services (on)

hinit runs it as the service hinit-actions where the file has actions. A changed file counts at once. What is to be done is kept in a file
until it is done, so it is done at least once.

  --config FILE  the configuration; as hinit finds it when not given
  --plain        the file is that of hinit run
  --state FILE   what was seen and is to be done (HINIT_ACTIONS_STATE; .hinit-actions.json in the data directory)
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	if len(args) > 0 && (args[0] == "help" || args[0] == "-h" || args[0] == "--help") {
		fmt.Fprint(out, help)
		return exitDone
	}
	flags := flag.NewFlagSet("hinit-actions", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	path, plain := flags.String("config", "", ""), flags.Bool("plain", false, "")
	file := flags.String("state", os.Getenv("HINIT_ACTIONS_STATE"), "")
	if len(args) > 0 && args[0] == "serve" {
		args = args[1:]
	}
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(out, help)
		return exitDone
	}
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unexpected %q", flags.Arg(0))
	}
	if err != nil {
		fmt.Fprintf(errs, "cannot run hinit-actions: %v; see: hinit-actions --help\n", err)
		return exitUsage
	}
	rules := &rules{options: config.Options{Path: *path, Plain: *plain}, path: *path}
	cfg, err := rules.read()
	if err != nil {
		fmt.Fprintf(errs, "cannot carry out actions: %v; the user that they run as has to be able to read the file\n", err)
		return exitFailed
	}
	if *file == "" {
		*file = filepath.Join(cfg.Home, ".hinit-actions.json")
	}
	host, _ := os.Hostname()
	socket := cfg.Control.Socket
	r := &actions.Runner{
		Watch: func(ctx context.Context, fn func(client.StatusChange) error) error {
			cl, err := client.Dial(boot.SocketCandidates(socket, os.LookupEnv, os.Geteuid()))
			if err != nil {
				return err
			}
			return cl.Watch(ctx, fn)
		},
		Rules: rules.next, State: *file, Host: host, Log: slog.New(slog.NewTextHandler(errs, nil)),
	}
	rules.first = cfg
	if err := r.Run(ctx); err != nil {
		fmt.Fprintf(errs, "cannot carry out actions: %v\n", err)
		return exitFailed
	}
	return exitDone
}

// rules reads the configuration when its file has changed.
type rules struct {
	options config.Options
	path    string
	first   *config.Config // already read, not handed on yet
	size    int64
	changed time.Time
}

// next returns the configuration if it is another one than before, else nil.
func (r *rules) next() (*config.Config, error) {
	if c := r.first; c != nil {
		r.first = nil
		return c, nil
	}
	fi, err := os.Stat(r.path)
	if err == nil && fi.Size() == r.size && fi.ModTime().Equal(r.changed) {
		return nil, nil
	}
	return r.read()
}

// read reads the configuration. What was read is not read again until it changes, right or wrong.
func (r *rules) read() (*config.Config, error) {
	for {
		if fi, err := os.Stat(r.path); err == nil {
			r.size, r.changed = fi.Size(), fi.ModTime()
		}
		c, err := config.Load(r.options)
		if err != nil || c.Path == r.path {
			return c, err
		}
		r.path = c.Path
	}
}
