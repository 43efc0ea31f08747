package applet

import (
	"strconv"

	"hinit/internal/fsutil"
	"hinit/internal/s6/formats"
)

// svdt prints when and how the runs of a service ended, oldest first: -n limits their number, -s prints signals by number.
// Gateways have no tally; see "hinit events".
func svdt(c *Call, options []option) int {
	most, names := formats.MaxTally, true
	for _, o := range options {
		if o.letter != 'n' {
			names = o.letter == 'S'
		} else if n, err := strconv.Atoi(o.value); err == nil && n >= 0 {
			most = n
		} else {
			return wrongUsage
		}
	}
	dir := c.Args[0]
	tally, err := readTally(dir)
	if err != nil {
		return c.fatal(exitSystem, "unable to read death tally for service "+dir+": "+strerror(err))
	}
	deaths := formats.Deaths(tally)
	for _, d := range deaths[max(0, len(deaths)-most):] {
		how := "signal " + strconv.Itoa(d.Signal)
		switch {
		case d.Signal == 0:
			how = "exitcode " + strconv.Itoa(d.Code)
		case names:
			how = "signal " + signalName(d.Signal)
		}
		if code := c.print(formats.TAI64N(d.At) + " " + how); code != exitDone {
			return code
		}
	}
	return exitDone
}

// readTally reads a file that users other than root may have created. It never blocks and follows no link out of the directory.
func readTally(dir string) ([]byte, error) {
	d, err := fsutil.OpenDir(dir, nil)
	if err != nil {
		return nil, err
	}
	defer d.Close() // no error matters: it is only read
	return d.ReadFile(formats.TallyFile, formats.MaxTallyFile)
}
