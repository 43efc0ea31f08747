package cli

import (
	"errors"
	"strings"

	"hinit/internal/cmdline"
	"hinit/internal/loglevel"
)

// level is the value of the flag --level; 0 is any.
type level struct{ loglevel.Level }

func (*level) choices() []string { return loglevel.Names() }

// String implements flag.Value.
func (l *level) String() string { return "" }

// Set implements flag.Value.
func (l *level) Set(text string) error {
	if l.Level = loglevel.Named([]byte(text)); l.Level != 0 {
		return nil
	}
	return errors.New("expected " + strings.Join(l.choices(), ", ") + cmdline.DidYouMean(text, l.choices()))
}

// atLeast matches the lines of a log that are as serious as least.
func atLeast(least level) func(text []byte) bool {
	var log loglevel.Tracker
	return func(text []byte) bool { return log.Of(text) >= least.Level }
}

// allOf matches what all do. Each is asked about each line.
func allOf(match ...func([]byte) bool) func([]byte) bool {
	return func(text []byte) bool {
		yes := true
		for _, m := range match {
			yes = m(text) && yes
		}
		return yes
	}
}
