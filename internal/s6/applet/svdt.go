package applet

import (
	"io"
	"strconv"
	"strings"

	"hinit/internal/fsutil"
	"hinit/internal/s6"
)

// svdt prints when and how the runs of a service directory ended, oldest first: -n the last few of them only, -s signals by
// number and not by name. The gateways of hinit have no such record; their history is that of "hinit events".
func svdt(c *Call) int {
	most, names := s6.MaxTally, true
	o := s6.Options{Words: c.Args, Plain: "Ss", WithValue: "n"}
	for {
		letter, value, more, ok := o.Next()
		if ok && more && letter == 'n' {
			var err error
			most, err = strconv.Atoi(value)
			ok = err == nil && most >= 0
		}
		if !ok {
			return c.usage(usageSvdt)
		}
		if !more {
			break
		}
		if letter != 'n' {
			names = letter == 'S'
		}
	}
	if len(o.Words) == 0 {
		return c.usage(usageSvdt)
	}
	dir := o.Words[0]
	tally, err := readTally(dir)
	if err != nil {
		return c.fatal(exitSystem, "unable to read death tally for service "+dir+": "+strerror(err))
	}
	deaths := s6.Deaths(tally)
	var b strings.Builder
	for _, d := range deaths[max(0, len(deaths)-most):] {
		b.WriteString(s6.TAI64N(d.At))
		switch {
		case d.Signal == 0:
			b.WriteString(" exitcode " + strconv.Itoa(d.Code))
		case names:
			b.WriteString(" signal " + s6.SignalName(d.Signal))
		default:
			b.WriteString(" signal " + strconv.Itoa(d.Signal))
		}
		b.WriteString("\n")
	}
	if _, err := io.WriteString(c.Out, b.String()); err != nil {
		return c.fatal(exitSystem, "unable to write to stdout: "+strerror(err))
	}
	return exitDone
}

const usageSvdt = "[ -S | -s ] [ -n maxentries ] servicedir"

// readTally reads what may have been put there by whoever could write the directory: nothing is waited for, and no link leads
// out of it.
func readTally(dir string) ([]byte, error) {
	path, err := absolute(dir)
	if err != nil {
		return nil, err
	}
	d, err := fsutil.OpenDir(path, nil)
	if err != nil {
		return nil, err
	}
	defer d.Close() // it is only read
	return d.ReadFile(s6.TallyFile, s6.MaxTallyFile)
}
