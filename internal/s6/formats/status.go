package formats

import (
	"strconv"
	"strings"
	"time"
)

// Status is a service as s6-svstat shows it.
type Status struct {
	Up         bool // the run program is alive; a running finish program counts as down
	WantUp     bool
	NormallyUp bool // there is no down file
	Ready      bool // up and said so
	Paused     bool // by a command, not by a signal from elsewhere
	Finishing  bool // down, and the finish program still runs
	Started    bool // run was started at least once
	PID, PGID  int  // of the run program; they count only when it is up
	ExitCode   int  // of the last run, -1 when a signal ended it
	Signal     int  // that ended the last run, 0 when it exited
	Since      time.Time
	ReadySince time.Time // since it is ready, or when down since nothing of it runs; zero means Since
}

// Line returns the line that s6-svstat prints, without a newline. With numbers, signals are numbers.
//
// The line never has the process group, which s6 prints since 2.13: older callers look for "(pid N)". "down (not started yet) "
// ends in a space, as since 2.13.2.
func (s Status) Line(now time.Time, numbers bool) string {
	var b strings.Builder
	switch {
	case s.Up:
		b.WriteString("up (pid " + strconv.Itoa(s.PID) + ") " + wholeSeconds(s.Since, now) + " seconds")
		note(&b, !s.NormallyUp, "normally down")
		note(&b, s.Paused, "paused")
		note(&b, !s.WantUp, "want down")
		note(&b, s.Ready, "ready "+wholeSeconds(s.readySince(), now)+" seconds")
	case !s.Started:
		b.WriteString("down (not started yet) ")
		note(&b, s.NormallyUp, "normally up")
		note(&b, s.WantUp, "want up")
	default:
		b.WriteString("down (" + s.cause(numbers) + ") " + wholeSeconds(s.Since, now) + " seconds")
		note(&b, s.NormallyUp, "normally up")
		note(&b, s.WantUp, "want up")
		note(&b, !s.Finishing, "ready "+wholeSeconds(s.readySince(), now)+" seconds")
	}
	return b.String()
}

func note(b *strings.Builder, is bool, text string) {
	if is {
		b.WriteString(", " + text)
	}
}

func (s Status) cause(numbers bool) string {
	switch {
	case s.Signal == 0:
		return "exitcode " + strconv.Itoa(max(s.ExitCode, 0))
	case numbers:
		return "signal " + strconv.Itoa(s.Signal)
	}
	return "signal " + SignalName(s.Signal)
}

func (s Status) readySince() time.Time {
	if s.ReadySince.IsZero() {
		return s.Since
	}
	return s.ReadySince
}

func (s Status) ended() bool { return !s.Up && s.Started }

// wholeSeconds returns the seconds between two times, at least 0: a clock may be set back.
func wholeSeconds(since, now time.Time) string {
	return strconv.FormatInt(int64(max(now.Sub(since), 0)/time.Second), 10)
}

var fields = map[string]func(s Status, now time.Time) string{
	"up":          func(s Status, _ time.Time) string { return strconv.FormatBool(s.Up) },
	"wantedup":    func(s Status, _ time.Time) string { return strconv.FormatBool(s.WantUp) },
	"normallyup":  func(s Status, _ time.Time) string { return strconv.FormatBool(s.NormallyUp) },
	"ready":       func(s Status, _ time.Time) string { return strconv.FormatBool(s.Up && s.Ready) },
	"paused":      func(s Status, _ time.Time) string { return strconv.FormatBool(s.Up && s.Paused) },
	"pid":         func(s Status, _ time.Time) string { return number(s.PID, s.Up) },
	"pgid":        func(s Status, _ time.Time) string { return number(s.PGID, s.Up) },
	"exitcode":    func(s Status, _ time.Time) string { return number(s.ExitCode, s.ended() && s.Signal == 0) },
	"signum":      func(s Status, _ time.Time) string { return number(s.Signal, s.ended() && s.Signal != 0) },
	"signal":      signalField,
	"updownsince": func(s Status, _ time.Time) string { return TAI64N(s.Since) },
	"readysince":  func(s Status, _ time.Time) string { return TAI64N(s.readySince()) },
	"updownfor":   func(s Status, now time.Time) string { return wholeSeconds(s.Since, now) },
	"readyfor":    func(s Status, now time.Time) string { return wholeSeconds(s.readySince(), now) },
}

func signalField(s Status, _ time.Time) string {
	if s.ended() && s.Signal != 0 {
		return SignalName(s.Signal)
	}
	return "NA"
}

func number(n int, has bool) string {
	if !has {
		return "-1"
	}
	return strconv.Itoa(n)
}

// IsField reports whether s6-svstat -o knows a field of this name.
func IsField(name string) bool { return fields[name] != nil }

// Fields returns the values of the named fields, separated by spaces. It leaves out names that [IsField] doesn't know.
func (s Status) Fields(names []string, now time.Time) string {
	values := make([]string, 0, len(names))
	for _, name := range names {
		if value := fields[name]; value != nil {
			values = append(values, value(s, now))
		}
	}
	return strings.Join(values, " ")
}
