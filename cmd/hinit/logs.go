package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"hinit/client"
	"hinit/logrotate"
	"hinit/profiles"
)

func logsVerb() verb {
	return verb{
		name: "logs", args: "NAME... [-f] [-n N] [--since D] [--previous] [--json]",
		summary: "print what a gateway or service wrote",
		help: `The lines come from the files on the volume, so this works while hinit does not run.
Several names are shown together, each line after its name. With --json each line is an object with time (RFC 3339, when
hinit read it), name and message; one that has no time in the file has none here.`,
		run: logs,
	}
}

// defaultLines is how many lines logs shows when it is not told.
const defaultLines = 100

func logs(t *terminal, c *call) int {
	follow := c.flags.Bool("f", false, "follow: go on printing, across rotations")
	n := c.flags.Int("n", defaultLines, "the last `N` lines, -1 for all; with --since all since then")
	since := c.flags.Duration("since", 0, "only what was written in the last `D`, such as 10m")
	previous := c.flags.Bool("previous", false, "the archives too")
	asJSON := c.flags.Bool("json", false, "print JSON, one object a line")
	names, code, ok := c.parse(t, 1, -1)
	if !ok {
		return code
	}
	opt := logrotate.ReadOptions{N: *n, Follow: *follow, Previous: *previous}
	opt.MaxLine, opt.MaxArchive = t.largest()
	if *since < 0 {
		return t.fail(exitUsage, "cannot show logs: --since must be positive, such as 10m")
	}
	if *since > 0 {
		opt.Since = time.Now().Add(-*since)
		if !flagGiven(c, "n") {
			opt.N = -1
		}
		opt.Previous = true // what was written then may have been rotated away since
	}
	if *previous && !flagGiven(c, "n") {
		opt.N = -1
	}
	dirs := make([]string, len(names))
	for i, name := range names {
		dir, err := t.logDir(name)
		if err != nil {
			return t.failed(fmt.Sprintf("show logs of %q", name), err)
		}
		dirs[i] = dir
	}
	if err := t.becomeAgent(); err != nil {
		return t.failed("show logs", err)
	}
	ctx, cancel := interruptible()
	defer cancel()
	var mu sync.Mutex // one line at a time
	var wg sync.WaitGroup
	results := make([]error, len(names))
	for i := range names {
		opt := opt
		opt.Dir = dirs[i]
		show := plainLine(names[i], len(names) > 1)
		if *asJSON {
			show = jsonLine(names[i])
		}
		wg.Go(func() {
			results[i] = logrotate.Read(ctx, opt, func(line []byte) error {
				mu.Lock()
				defer mu.Unlock()
				text, err := show(line)
				if err != nil {
					return err
				}
				_, err = t.out.Write(append(text, '\n'))
				return err
			})
		})
	}
	wg.Wait()
	worst := exitDone
	for i, err := range results {
		if err != nil && ctx.Err() == nil {
			worst = t.fail(exitFailed, "cannot show logs of %q: %s", names[i], strings.ReplaceAll(err.Error(), "\n", "; "))
		}
	}
	return worst
}

// largest returns how long a line, and how large an archive, can be that the configured hinit writes; at least what Read takes
// for that by itself, because it may have been configured otherwise before.
func (t *terminal) largest() (line int, archive int64) {
	cfg, err := t.config()
	if err != nil {
		return 0, 0
	}
	size := cfg.Logs.MaxSizeMB
	for _, limits := range cfg.Logs.Profiles {
		size = max(size, limits.MaxSizeMB)
	}
	for _, s := range cfg.Services {
		size = max(size, s.Logs.MaxSizeMB)
	}
	return max(2*cfg.Logs.MaxLineKB, 1<<10) << 10, max(2*int64(size), 256) << 20
}

// plainLine shows a line as it is in the file, after its name if there are several.
func plainLine(name string, tagged bool) func(line []byte) ([]byte, error) {
	tag := ""
	if tagged {
		tag = name + " | "
	}
	return func(line []byte) ([]byte, error) { return append([]byte(tag), line...), nil }
}

// jsonLine shows a line as an object. Bytes that are not UTF-8 become U+FFFD.
func jsonLine(name string) func(line []byte) ([]byte, error) {
	return func(line []byte) ([]byte, error) {
		written, message, _ := logrotate.Split(line)
		return json.Marshal(struct {
			Time    time.Time `json:"time,omitzero"`
			Name    string    `json:"name"`
			Message string    `json:"message"`
		}{written, name, string(message)})
	}
}

func flagGiven(c *call, name string) bool {
	given := false
	c.flags.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	return given
}

// becomeAgent gives up root for the rest of the process: the agent can put links into its log directory, and must not be
// able to show root's files through root's own eyes.
func (t *terminal) becomeAgent() error {
	if os.Geteuid() != 0 {
		return nil
	}
	cfg, err := t.config()
	if err != nil {
		return err
	}
	agent, err := lookupAgent(cfg)
	if err != nil || agent.user.UID == 0 || !agent.actor.Switches() {
		return err
	}
	groups := make([]int, len(agent.user.Groups))
	for i, g := range agent.user.Groups {
		groups[i] = int(g)
	}
	if err := syscall.Setgroups(groups); err != nil {
		return fmt.Errorf("cannot become %s: %w", cfg.Agent.User, err)
	}
	if err := syscall.Setgid(int(agent.user.GID)); err != nil {
		return fmt.Errorf("cannot become %s: %w", cfg.Agent.User, err)
	}
	if err := syscall.Setuid(int(agent.user.UID)); err != nil {
		return fmt.Errorf("cannot become %s: %w", cfg.Agent.User, err)
	}
	return nil
}

// logDir finds the directory of a log: the running init knows best, the configuration knows when it does not run.
func (t *terminal) logDir(name string) (string, error) {
	cl, err := t.dial()
	if err == nil {
		var st client.Status
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		st, err = cl.Status(ctx, name)
		if err == nil && len(st.Services) > 0 {
			if st.Services[0].Log == "" {
				return "", fmt.Errorf("cannot show logs of %q: it has no file of its own; its output is in the container's log", name)
			}
			return filepath.Dir(st.Services[0].Log), nil
		}
		if errors.Is(err, client.ErrUnknown) {
			if dir, ok := t.offlineLogDir(name); ok {
				return dir, nil // a profile that was deleted leaves its log
			}
			return "", err
		}
	}
	if dir, ok := t.offlineLogDir(name); ok {
		return dir, nil
	}
	return "", err
}

func (t *terminal) offlineLogDir(name string) (string, bool) {
	cfg, err := t.config()
	if err != nil {
		return "", false
	}
	if profile, ok := profiles.SlotProfile(name); ok {
		name = profile
	}
	if profiles.ValidServiceName(name) != nil {
		return "", false
	}
	dir := filepath.Join(cfg.Logs.Dir, name)
	st, err := os.Stat(dir)
	return dir, err == nil && st.IsDir()
}
