package tools

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"regexp"
	"strings"
	"time"

	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/fsutil"
	"hinit/internal/loglevel"
	"hinit/logrotate/reader"
)

// readMatching is like [reader.Read], but emits only lines whose text matches. opt.N is the number of newest matching lines to
// emit.
func readMatching(ctx context.Context, as *fsutil.Actor, opt reader.Options, match func(text []byte) bool, emit func([]byte) error) error {
	var kept [][]byte
	last := opt.N
	opt.N = -1
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
	opt.Caught = show
	err := reader.Read(ctx, as, opt, func(line []byte) error {
		_, text, _ := reader.Split(line)
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
	if collecting { // without following, opt.Caught is not called
		err = cmp.Or(err, show())
	}
	return err
}

// level is the value of the flag --level; 0 means any level.
type level struct{ loglevel.Level }

// String implements flag.Value.
func (l *level) String() string { return "" }

// Set implements flag.Value.
func (l *level) Set(text string) error {
	if l.Level = loglevel.Named([]byte(text)); l.Level != 0 {
		return nil
	}
	return errors.New("expected " + strings.Join(loglevel.Names(), ", ") + cmdline.DidYouMean(text, loglevel.Names()))
}

// levelAndPattern returns a function that matches lines of one log. A line matches if its level is at least the argument least
// and its text matches pattern. Use a new function for each log, because it remembers the level of the line before.
func levelAndPattern(least level, pattern *regexp.Regexp) func(text []byte) bool {
	var log loglevel.Tracker
	return func(text []byte) bool {
		level := log.Of(text) // a line without a level has the level of the line before it
		return level >= least.Level && pattern.Match(text)
	}
}

// timeFlag is the value of the flag --since: a time, or a duration before now.
type timeFlag struct{ time.Time }

// sinceFlag defines the flag --since.
func sinceFlag(c *cli.Call) *timeFlag {
	m := &timeFlag{}
	c.Flags.Var(m, "since", "only lines or events since `D|TIME`: 10m, 1d, 15:04, 2006-01-02T15:04:05 or RFC 3339")
	return m
}

// String implements flag.Value.
func (m *timeFlag) String() string { return "" }

// Set implements flag.Value.
func (m *timeFlag) Set(text string) error {
	if ago, err := cmdline.ParseDuration(text); err == nil {
		if ago <= 0 {
			return errors.New("it must be positive, such as 10m")
		}
		m.Time = time.Now().Add(-ago)
		return nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02 15:04", time.DateOnly} {
		if at, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			m.Time = at
			return nil
		}
	}
	for _, layout := range []string{"15:04:05", "15:04"} {
		if at, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			now := time.Now()
			m.Time = time.Date(now.Year(), now.Month(), now.Day(), at.Hour(), at.Minute(), at.Second(), 0, time.Local)
			return nil
		}
	}
	return errors.New("it is neither a duration such as 10m or 1d nor a time such as 15:04 or 2006-01-02T15:04:05")
}
