package tools

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"hinit/client"
	"hinit/internal/boot/lookup"
	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
	"hinit/internal/fsutil"
	"hinit/internal/loglevel"
	"hinit/logrotate/archive"
	"hinit/logrotate/reader"
	"hinit/profiles"
)

var logsVerb = cli.Verb{
	Name: "logs", Action: "show the logs", JSONHelp: "print JSON, one object a line", Args: "NAME... | --all | --state STATE [-f] [-n N] [--since D|TIME] [--grep RE] [--level LEVEL] [--previous] [--json]",
	Summary:         "print what a gateway or service wrote",
	SelectsServices: true, OfflineNames: logNames,
	Run: showLogs,
}

// defaultLines is the number of lines that hinit logs shows without -n.
const defaultLines = 100

func showLogs(t *cli.Terminal, c *cli.Call) int {
	follow := c.Flags.Bool("f", false, "follow: keep printing, across rotations")
	n := c.Flags.Int("n", defaultLines, "the last `N` lines, -1 for all; with --since all since then")
	since := sinceFlag(c)
	all := c.Flags.Bool("all", false, "of everything that has a log file")
	previous := c.Flags.Bool("previous", false, "the archives too")
	grep := c.Flags.String("grep", "", "only lines whose text matches `RE`")
	least := levelFlag(c)
	names, code, ok := c.Parse(t, 0, -1)
	if !ok {
		return code
	}
	if *all != (len(names) == 0) {
		return t.Fail(cmdline.ExitUsage, "cannot show the logs: expected: hinit logs %s", c.Verb.Args)
	}
	if *all {
		var err error
		if names, err = logNames(t); err != nil {
			return t.ReportError("show the logs", err)
		}
	}
	pattern, err := regexp.Compile(*grep)
	if err != nil {
		return t.Fail(cmdline.ExitUsage, "cannot show the logs: %v; quote the expression for the shell", err)
	}
	opt := reader.Options{LastLines: *n, Follow: *follow, Since: *since, Previous: *previous && since.IsZero()}
	opt.MaxLine, opt.MaxArchive = largestLog(t)
	if (*previous || !since.IsZero()) && !cli.FlagGiven(c, "n") {
		opt.LastLines = -1
	}
	narrow := *grep != "" || *least != 0
	width := 0
	for _, name := range names {
		width = max(width, utf8.RuneCountInString(show.EscapeName(name)))
	}
	var mu sync.Mutex
	readers := make([]logReader, len(names))
	for i, name := range names {
		as, dir, err := findLog(t, name)
		if err != nil {
			return t.ReportError(fmt.Sprintf("show logs of %q", name), err)
		}
		opt := opt
		opt.Dir = dir
		format := plainFormatter(name, width, len(names) > 1, t.IsScreen)
		if c.JSON {
			format = jsonFormatter(name)
		}
		readers[i] = logReader{
			dir: dir,
			read: func(ctx context.Context, fn func([]byte) error) {
				if !narrow {
					readers[i].err = reader.Read(ctx, as, opt, fn)
				} else {
					readers[i].err = readMatching(ctx, as, opt, lineMatcher(*least, pattern), fn)
				}
			},
			show: func(line []byte) error {
				mu.Lock()
				defer mu.Unlock()
				text, err := format(line)
				if err != nil {
					return err
				}
				_, err = t.RawOutput().Write(append(text, '\n'))
				return err
			},
		}
	}
	ctx, cancel := cmdline.InterruptibleContext()
	defer cancel()
	if *follow || len(names) == 1 {
		var wg sync.WaitGroup
		for _, r := range readers {
			wg.Go(func() { r.read(ctx, r.show) })
		}
		wg.Wait()
	} else if err := mergeByTime(ctx, readers); err != nil {
		return t.ReportError("show the logs", err)
	}
	worst := cmdline.ExitDone
	for i, r := range readers {
		err := r.err
		switch {
		case ctx.Err() != nil:
			continue
		case errors.Is(err, fsutil.ErrSymlink):
			err = fmt.Errorf("there is a link in %s, which hinit doesn't follow (%w); remove it, and hinit makes a new log there", r.dir, err)
		case errors.Is(err, fs.ErrNotExist):
			err = fmt.Errorf("it has written none yet, there is no %s; see: hinit status %s", r.dir, names[i])
		}
		worst = max(worst, t.ReportError(fmt.Sprintf("show logs of %q", names[i]), err))
	}
	return worst
}

// logReader is the reading of one log. read calls fn for each line and stores its error in err. show prints one line.
type logReader struct {
	dir  string // directory of the log
	err  error
	read func(ctx context.Context, fn func([]byte) error)
	show func(line []byte) error
}

// mergeByTime shows the lines of several logs in the order of their times. A line without a time stays behind the previous line
// of its log.
func mergeByTime(ctx context.Context, readers []logReader) error {
	type head struct {
		at   time.Time
		line []byte // the current line, valid until the next call of next
		more bool
		next func() (at time.Time, line []byte, more bool)
		show func(line []byte) error
	}
	heads := make([]*head, len(readers))
	for i, r := range readers {
		next, stop := iter.Pull2(func(yield func(time.Time, []byte) bool) {
			var at time.Time
			r.read(ctx, func(line []byte) error {
				if written, _, ok := reader.SplitLine(line); ok {
					at = written
				}
				if !yield(at, line) {
					return context.Canceled
				}
				return nil
			})
		})
		defer stop()
		heads[i] = &head{next: next, show: r.show}
		heads[i].at, heads[i].line, heads[i].more = next()
	}
	for {
		heads = slices.DeleteFunc(heads, func(h *head) bool { return !h.more })
		if len(heads) == 0 {
			return nil
		}
		h := slices.MinFunc(heads, func(a, b *head) int { return a.at.Compare(b.at) })
		if err := h.show(h.line); err != nil {
			return err
		}
		h.at, h.line, h.more = h.next()
	}
}

func logNames(t *cli.Terminal) (names []string, err error) {
	st, err := t.Status()
	if err == nil {
		as, err := lookup.LogReader(st.Init.ServicesFile != "", t.Env)
		for _, s := range st.Services {
			if s.Log != "" && reader.Exists(as, filepath.Dir(s.Log)) {
				names = append(names, s.Name)
			}
		}
		return names, err
	}
	cfg, broken := t.Config()
	if broken != nil || !errors.Is(err, client.ErrUnreachable) {
		return nil, err
	}
	as, err := lookup.LogReader(false, t.Env)
	if err != nil {
		return nil, err
	}
	names, err = archive.Dir{Path: cfg.Logs.Dir, Actor: as}.List(fs.FileMode.IsDir)
	slices.Sort(names)
	return slices.DeleteFunc(names, func(name string) bool { return profiles.ValidServiceName(name) != nil }), err
}

// largestLog returns the maximum size in bytes of a log line and of an archive, by the configuration. Files may be older than
// the configuration, so both results are twice the configured sizes, and at least the defaults of [reader.Read].
func largestLog(t *cli.Terminal) (line int, archive int64) {
	st, _ := t.Status()
	cfg, err := t.ConfigOf(st.Init)
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

// plainFormatter returns a function that formats a line as it is in the file. If tagged is true, the name of the log comes first.
// If screen is true, the function escapes all control characters except colours, because a service may write any bytes.
func plainFormatter(name string, width int, tagged, screen bool) func(line []byte) ([]byte, error) {
	tag := ""
	if tagged {
		short := show.EscapeName(name)
		tag = short + strings.Repeat(" ", max(width-utf8.RuneCountInString(short), 0)) + " | "
	}
	return func(line []byte) ([]byte, error) {
		if screen {
			return []byte(tag + cmdline.EscapeOutput(string(line))), nil
		}
		return append([]byte(tag), line...), nil
	}
}

// logLine is a line of a log.
type logLine struct {
	Time    time.Time `json:"time,omitzero"` // time of the line; missing if the file has none
	Name    string    `json:"name"`          // name on the command line; with --all, the service's name
	Message string    `json:"message"`       // the line without its time
}

// jsonFormatter returns a function that formats a line as a JSON object. It replaces bytes that aren't UTF-8 by U+FFFD.
func jsonFormatter(name string) func(line []byte) ([]byte, error) {
	return func(line []byte) ([]byte, error) {
		written, message, _ := reader.SplitLine(line)
		text, err := json.Marshal(logLine{written, name, string(message)})
		return cmdline.EscapeJSON(text), err
	}
}

// findLog returns the directory of a service's log and the identity for reading it. The directory comes from the status of a
// running init, or else from the configuration.
func findLog(t *cli.Terminal, name string) (as *fsutil.Actor, dir string, err error) {
	st, err := t.Status(name)
	if err == nil && len(st.Services) > 0 {
		if st.Services[0].Log == "" {
			return nil, "", noLogFile(t, name, st)
		}
		as, err := lookup.LogReader(st.Init.ServicesFile != "", t.Env)
		return as, filepath.Dir(st.Services[0].Log), err
	}
	if profile, ok := profiles.SlotProfile(name); ok {
		name = profile
	}
	cfg, broken := t.Config()
	if broken != nil || profiles.ValidServiceName(name) != nil {
		return nil, "", err
	}
	dir = filepath.Join(cfg.Logs.Dir, name)
	// A search by name also finds the log of a deleted profile.
	if as, broken = lookup.LogReader(false, t.Env); broken == nil && reader.Exists(as, dir) {
		return as, dir, nil
	}
	return nil, "", err
}

// noLogFile returns an error that explains why a service has no log file, and how hinit.yaml can give it one.
func noLogFile(t *cli.Terminal, name string, st client.Status) error {
	const why = "cannot show logs of %q: it has no file of its own; its output is in the container's log (docker logs)"
	service := st.Services[0].Name
	cfg, err := t.ConfigOf(st.Init)
	if err != nil || cfg.Services[service].Name == "" {
		return fmt.Errorf(why, name)
	}
	return fmt.Errorf(why+"; for a file set services.%s.log: true in hinit.yaml, then run: hinit reload && hinit restart %s", name, service, service)
}

// readMatching reads matching lines with [reader.Read]. Of the existing lines, it emits the last opt.N that match.
func readMatching(ctx context.Context, as *fsutil.Actor, opt reader.Options, match func(text []byte) bool, emit func([]byte) error) error {
	var kept [][]byte
	last := opt.LastLines
	opt.LastLines = -1
	collecting := last >= 0
	show := func() error {
		collecting = false
		for _, line := range kept {
			if err := emit(line); err != nil {
				return err
			}
		}
		kept = nil
		return nil
	}
	opt.OnCaughtUp = show
	err := reader.Read(ctx, as, opt, func(line []byte) error {
		_, text, _ := reader.SplitLine(line)
		switch {
		case !match(text):
			return nil
		case !collecting:
			return emit(line)
		case last > 0:
			kept = append(kept[max(0, len(kept)+1-last):], bytes.Clone(line))
		}
		return nil
	})
	if collecting { // reader.Read calls opt.OnCaughtUp only when it follows the log
		err = cmp.Or(err, show())
	}
	return err
}

// levelFlag defines the flag --level. The result is 0, which means any level, if the user doesn't give the flag.
func levelFlag(c *cli.Call) *loglevel.Level {
	least := new(loglevel.Level)
	c.Flags.Func("level", "only lines as serious as `LEVEL`: trace, debug, info, warning, error or critical", func(text string) error {
		if *least = loglevel.Parse([]byte(text)); *least == 0 {
			return errors.New("expected " + strings.Join(loglevel.Names(), ", ") + cmdline.DidYouMean(text, loglevel.Names()))
		}
		return nil
	})
	return least
}

// lineMatcher returns a function that matches lines of at least the level least with a match of pattern. Each log needs its
// own function, because the function remembers the level of the previous line.
func lineMatcher(least loglevel.Level, pattern *regexp.Regexp) func(text []byte) bool {
	var log loglevel.Tracker
	return func(text []byte) bool {
		return log.OfNextLine(text) >= least && pattern.Match(text) // a line without a level has the level of the previous line
	}
}
