package applet

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"hinit/internal/s6/formats"
)

const usageSvstat = "[ -uwNrpgest | -o up,wantedup,normallyup,ready,paused,pid,pgid,exitcode,signal,signum,updownsince,readysince,updownfor,readyfor ] [ -n ] servicedir"

// shortFields are the fields that have a letter.
var shortFields = map[byte]string{
	'u': "up", 'w': "wantedup", 'N': "normallyup", 'r': "ready", 'p': "pid", 'g': "pgid", 'e': "exitcode", 's': "signal", 't': "updownfor",
}

func svstat(c *Call) int {
	var shown []string
	numbers := false
	o := formats.Options{Words: c.Args, Plain: "uwNrpgestn", WithValue: "o"}
	for letter, value := range o.All() {
		switch letter {
		case 'n':
			numbers = true
		case 'o':
			for name := range strings.SplitSeq(strings.TrimSuffix(value, ","), ",") {
				if fields[name] == nil {
					return c.fatal(exitUsage, "invalid option field: "+name)
				}
				shown = append(shown, name)
			}
		default:
			shown = append(shown, shortFields[letter])
		}
	}
	if o.Wrong || len(o.Words) == 0 {
		return c.usage(usageSvstat)
	}
	dir := o.Words[0]
	ctx := context.Background() // a signal ends the tool as it ends any program
	slot, err := c.slot(ctx, dir)
	switch {
	case errors.Is(err, os.ErrPermission):
		return c.fatal(exitSystem, "unable to check "+dir+": "+strerror(err))
	case errors.Is(err, errNotListening), errors.Is(err, os.ErrNotExist):
		return c.fatal(exitNo, "unable to read status for "+dir+": s6-supervise not running")
	case err != nil:
		return c.fatal(exitSystem, "unable to check "+dir+": "+strerror(err))
	}
	if len(shown) > 0 {
		return c.print(statusFields(slot, shown, time.Now()))
	}
	return c.print(statusLine(slot, time.Now(), numbers))
}

// svok reports by its exit code whether a directory is supervised.
func svok(c *Call) int {
	o := formats.Options{Words: c.Args}
	for range o.All() { // it has none
	}
	if o.Wrong || len(o.Words) == 0 {
		return c.usage("servicedir")
	}
	ctx := context.Background() // a signal ends the tool as it ends any program
	_, err := c.slot(ctx, o.Words[0])
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errNotListening), errors.Is(err, os.ErrNotExist):
		return exitNo
	}
	return c.fatal(exitSystem, "unable to check "+o.Words[0]+": "+strerror(err))
}
