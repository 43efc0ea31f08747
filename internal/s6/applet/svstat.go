package applet

import (
	"cmp"
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/fsutil"
	"hinit/internal/s6/formats"
)

// fieldByLetter maps option letters to names of fields.
var fieldByLetter = map[byte]string{
	'u': "up", 'w': "wantedup", 'N': "normallyup", 'r': "ready", 'p': "pid", 'g': "pgid", 'e': "exitcode", 's': "signal", 't': "updownfor",
}

func runSvstat(c *Invocation, options []option) int {
	var shown []string
	numbers := false
	for _, o := range options {
		switch o.letter {
		case 'n':
			numbers = true
		case 'o':
			for name := range strings.SplitSeq(strings.TrimSuffix(o.value, ","), ",") {
				if _, known := statusValues(client.Slot{}, time.Time{})[name]; !known {
					return c.fatal(exitUsage, "invalid option field: "+name)
				}
				shown = append(shown, name)
			}
		default:
			shown = append(shown, fieldByLetter[o.letter])
		}
	}
	slot, code := c.slotOfArgs()
	switch {
	case code == exitFalse:
		return c.fatal(exitFalse, "unable to read status for "+c.Args[0]+": s6-supervise not running")
	case code != exitDone:
		return code
	case len(shown) > 0:
		return c.print(statusFields(slot, shown, time.Now()))
	}
	return c.print(statusLine(slot, time.Now(), numbers))
}

// runSvok returns the exit code 0 if a directory is supervised.
func runSvok(c *Invocation, _ []option) int {
	_, code := c.slotOfArgs()
	return code
}

// slotOfArgs returns the slot with the path in the first argument. If the directory is not supervised, code is exitFalse.
func (c *Invocation) slotOfArgs() (slot client.Slot, code int) {
	slot, err := c.slot(context.Background(), c.Args[0])
	switch {
	case err == nil:
		return slot, exitDone
	case errors.Is(err, errNotListening), errors.Is(err, os.ErrNotExist):
		return slot, exitFalse
	}
	return slot, c.fatal(exitSystemError, "unable to check "+c.Args[0]+": "+strerror(err))
}

// statusLine returns the output of s6-svstat without the newline. If numbers is true, it prints signals as numbers.
//
// Older callers search for "(pid N)", so the line lacks the process group, which s6 has printed since version 2.13. The text
// "down (not started yet) " ends with a space, as in s6 since version 2.13.2.
func statusLine(s client.Slot, now time.Time, numbers bool) string {
	var b strings.Builder
	other := "up"
	switch {
	case s.Up:
		b.WriteString("up (pid " + strconv.Itoa(s.PID) + ") " + secondsBetween(s.Since, now) + " seconds")
		other = "down"
	case s.EverStarted:
		b.WriteString("down (" + exitText(max(s.ExitCode, 0), s.Signal, numbers) + ") " + secondsBetween(s.Since, now) + " seconds")
	default:
		b.WriteString("down (not started yet) ")
	}
	appendIf(&b, s.NormallyUp != s.Up, "normally "+other)
	appendIf(&b, s.Up && s.Paused, "paused")
	appendIf(&b, s.WantUp != s.Up, "want "+other)
	appendIf(&b, s.Up && s.Ready || hasEnded(s) && !s.Finishing, "ready "+secondsBetween(readySince(s), now)+" seconds")
	return b.String()
}

func appendIf(b *strings.Builder, is bool, text string) {
	if is {
		b.WriteString(", " + text)
	}
}

// exitText describes the end of a run. signal is 0 without a signal.
func exitText(exitCode, signal int, numbers bool) string {
	switch {
	case signal == 0:
		return "exitcode " + strconv.Itoa(exitCode)
	case numbers:
		return "signal " + strconv.Itoa(signal)
	}
	return "signal " + signalName(signal)
}

func readySince(s client.Slot) time.Time {
	if s.ReadySince.IsZero() {
		return s.Since
	}
	return s.ReadySince
}

func hasEnded(s client.Slot) bool { return !s.Up && s.EverStarted }

// secondsBetween returns the number of whole seconds between two times; 0 if the clock was set back.
func secondsBetween(since, now time.Time) string {
	return strconv.FormatInt(int64(max(now.Sub(since), 0)/time.Second), 10)
}

// statusValues returns the values of all fields of s6-svstat -o, by name.
func statusValues(s client.Slot, now time.Time) map[string]string {
	signalled, signal := hasEnded(s) && s.Signal != 0, "NA"
	if signalled {
		signal = signalName(s.Signal)
	}
	return map[string]string{
		"up":          strconv.FormatBool(s.Up),
		"wantedup":    strconv.FormatBool(s.WantUp),
		"normallyup":  strconv.FormatBool(s.NormallyUp),
		"ready":       strconv.FormatBool(s.Up && s.Ready),
		"paused":      strconv.FormatBool(s.Up && s.Paused),
		"pid":         numberText(s.PID, s.Up),
		"pgid":        numberText(s.PGID, s.Up),
		"exitcode":    numberText(s.ExitCode, hasEnded(s) && s.Signal == 0),
		"signum":      numberText(s.Signal, signalled),
		"signal":      signal,
		"updownsince": formats.TAI64N(s.Since),
		"readysince":  formats.TAI64N(readySince(s)),
		"updownfor":   secondsBetween(s.Since, now),
		"readyfor":    secondsBetween(readySince(s), now),
	}
}

func numberText(n int, has bool) string {
	if !has {
		return "-1"
	}
	return strconv.Itoa(n)
}

// statusFields returns the values of the named fields, with spaces between them.
func statusFields(s client.Slot, names []string, now time.Time) string {
	values, all := make([]string, len(names)), statusValues(s, now)
	for i, name := range names {
		values[i] = all[name]
	}
	return strings.Join(values, " ")
}

// signalName returns the name of a signal as s6 prints it, or "SIG" and its number. Signal 6 is always SIGABRT, although newer
// versions of s6 print SIGIOT.
func signalName(number int) string {
	return cmp.Or(unix.SignalName(syscall.Signal(number)), "SIG"+strconv.Itoa(number))
}

// runSvdt prints the times and exits of the runs of a service, oldest first. -n limits the number of lines, and -s prints signals
// as numbers. Gateways have no such record; `hinit events` shows their exits.
func runSvdt(c *Invocation, options []option) int {
	most, numbers := formats.MaxDeaths, false
	for _, o := range options {
		if o.letter != 'n' {
			numbers = o.letter == 's'
		} else if n, err := strconv.Atoi(o.value); err == nil && n >= 0 {
			most = n
		} else {
			return wrongUsage
		}
	}
	dir := c.Args[0]
	tally, err := readTally(dir)
	if err != nil {
		return c.fatal(exitSystemError, "unable to read death tally for service "+dir+": "+strerror(err))
	}
	deaths := formats.ParseDeaths(tally)
	for _, d := range deaths[max(0, len(deaths)-most):] {
		if code := c.print(formats.TAI64N(d.At) + " " + exitText(d.Code, d.Signal, numbers)); code != exitDone {
			return code
		}
	}
	return exitDone
}

// readTally reads the file in which s6 records the ends of runs. Users other than root may have made the file, so readTally
// never blocks, and follows no link out of dir.
func readTally(dir string) ([]byte, error) {
	d, err := fsutil.OpenDir(dir, nil)
	if err != nil {
		return nil, err
	}
	defer d.Close() // closing a file after reading can't lose data
	return d.ReadFile(formats.TallyFile, formats.MaxTallyFile)
}
