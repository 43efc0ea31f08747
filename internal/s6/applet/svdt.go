package applet

import (
	"strconv"

	"hinit/internal/fsutil"
	"hinit/internal/s6/formats"
)

// svdt prints when and how the runs of a service have ended, the oldest first. Option -n limits the number of lines, and -s
// prints signals as numbers. Gateways have no such record: use "hinit events".
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

// readTally reads a file that users other than root may have created. So it never blocks, and does not follow a link that
// leaves the directory.
func readTally(dir string) ([]byte, error) {
	d, err := fsutil.OpenDir(dir, nil)
	if err != nil {
		return nil, err
	}
	defer d.Close() // closing a file that was only read can't fail
	return d.ReadFile(formats.TallyFile, formats.MaxTallyFile)
}
