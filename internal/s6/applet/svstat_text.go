package applet

import (
	"cmp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"hinit/client"
	"hinit/internal/s6/formats"

	"golang.org/x/sys/unix"
)

// statusLine returns the line that s6-svstat prints, without a newline. If numbers is true, signals are printed as numbers.
//
// The line does not contain the process group, which s6 prints since version 2.13, because older callers search for "(pid N)".
// The text "down (not started yet) " ends with a space, as in s6 since version 2.13.2.
func statusLine(s client.Slot, now time.Time, numbers bool) string {
	var b strings.Builder
	other := "up"
	switch {
	case s.Up:
		b.WriteString("up (pid " + strconv.Itoa(s.PID) + ") " + wholeSeconds(s.Since, now) + " seconds")
		other = "down"
	case s.Started:
		b.WriteString("down (" + cause(s, numbers) + ") " + wholeSeconds(s.Since, now) + " seconds")
	default:
		b.WriteString("down (not started yet) ")
	}
	appendIf(&b, s.NormallyUp != s.Up, "normally "+other)
	appendIf(&b, s.Up && s.Paused, "paused")
	appendIf(&b, s.WantUp != s.Up, "want "+other)
	appendIf(&b, s.Up && s.Ready || ended(s) && !s.Finishing, "ready "+wholeSeconds(readySince(s), now)+" seconds")
	return b.String()
}

func appendIf(b *strings.Builder, is bool, text string) {
	if is {
		b.WriteString(", " + text)
	}
}

func cause(s client.Slot, numbers bool) string {
	switch {
	case s.Signal == 0:
		return "exitcode " + strconv.Itoa(max(s.ExitCode, 0))
	case numbers:
		return "signal " + strconv.Itoa(s.Signal)
	}
	return "signal " + signalName(s.Signal)
}

func readySince(s client.Slot) time.Time {
	if s.ReadySince.IsZero() {
		return s.Since
	}
	return s.ReadySince
}

func ended(s client.Slot) bool { return !s.Up && s.Started }

// wholeSeconds returns the number of whole seconds between two times. It is never negative, even if the clock was set back.
func wholeSeconds(since, now time.Time) string {
	return strconv.FormatInt(int64(max(now.Sub(since), 0)/time.Second), 10)
}

// fields maps the name of each field that s6-svstat -o supports to the function that returns its value.
var fields = map[string]func(s client.Slot, now time.Time) string{
	"up":          func(s client.Slot, _ time.Time) string { return strconv.FormatBool(s.Up) },
	"wantedup":    func(s client.Slot, _ time.Time) string { return strconv.FormatBool(s.WantUp) },
	"normallyup":  func(s client.Slot, _ time.Time) string { return strconv.FormatBool(s.NormallyUp) },
	"ready":       func(s client.Slot, _ time.Time) string { return strconv.FormatBool(s.Up && s.Ready) },
	"paused":      func(s client.Slot, _ time.Time) string { return strconv.FormatBool(s.Up && s.Paused) },
	"pid":         func(s client.Slot, _ time.Time) string { return number(s.PID, s.Up) },
	"pgid":        func(s client.Slot, _ time.Time) string { return number(s.PGID, s.Up) },
	"exitcode":    func(s client.Slot, _ time.Time) string { return number(s.ExitCode, ended(s) && s.Signal == 0) },
	"signum":      func(s client.Slot, _ time.Time) string { return number(s.Signal, ended(s) && s.Signal != 0) },
	"signal":      signalField,
	"updownsince": func(s client.Slot, _ time.Time) string { return formats.TAI64N(s.Since) },
	"readysince":  func(s client.Slot, _ time.Time) string { return formats.TAI64N(readySince(s)) },
	"updownfor":   func(s client.Slot, now time.Time) string { return wholeSeconds(s.Since, now) },
	"readyfor":    func(s client.Slot, now time.Time) string { return wholeSeconds(readySince(s), now) },
}

func signalField(s client.Slot, _ time.Time) string {
	if ended(s) && s.Signal != 0 {
		return signalName(s.Signal)
	}
	return "NA"
}

func number(n int, has bool) string {
	if !has {
		return "-1"
	}
	return strconv.Itoa(n)
}

// statusFields returns the values of the named fields, separated by spaces.
func statusFields(s client.Slot, names []string, now time.Time) string {
	values := make([]string, len(names))
	for i, name := range names {
		values[i] = fields[name](s, now)
	}
	return strings.Join(values, " ")
}

// signalName returns the name of a signal as s6 prints it, or "SIG" and its number if it has no name. Signal 6 is always
// SIGABRT, although newer versions of s6 print SIGIOT.
func signalName(number int) string {
	return cmp.Or(unix.SignalName(syscall.Signal(number)), "SIG"+strconv.Itoa(number))
}
