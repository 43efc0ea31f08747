package applet

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"hinit/client"
)

// shortFields maps the one-letter options to the names of fields.
var shortFields = map[byte]string{
	'u': "up", 'w': "wantedup", 'N': "normallyup", 'r': "ready", 'p': "pid", 'g': "pgid", 'e': "exitcode", 's': "signal", 't': "updownfor",
}

func svstat(c *Call, options []option) int {
	var shown []string
	numbers := false
	for _, o := range options {
		switch o.letter {
		case 'n':
			numbers = true
		case 'o':
			for name := range strings.SplitSeq(strings.TrimSuffix(o.value, ","), ",") {
				if fields[name] == nil {
					return c.fatal(exitUsage, "invalid option field: "+name)
				}
				shown = append(shown, name)
			}
		default:
			shown = append(shown, shortFields[o.letter])
		}
	}
	slot, code := c.slotOfArgs()
	switch {
	case code == exitNo:
		return c.fatal(exitNo, "unable to read status for "+c.Args[0]+": s6-supervise not running")
	case code != exitDone:
		return code
	case len(shown) > 0:
		return c.print(statusFields(slot, shown, time.Now()))
	}
	return c.print(statusLine(slot, time.Now(), numbers))
}

// svok reports by its exit code whether a directory is supervised.
func svok(c *Call, _ []option) int {
	_, code := c.slotOfArgs()
	return code
}

// slotOfArgs returns the slot (service directory) whose path is the first argument. code is exitNo if that directory is not
// supervised.
func (c *Call) slotOfArgs() (slot client.Slot, code int) {
	slot, err := c.slot(context.Background(), c.Args[0])
	switch {
	case err == nil:
		return slot, exitDone
	case errors.Is(err, errNotListening), errors.Is(err, os.ErrNotExist):
		return slot, exitNo
	}
	return slot, c.fatal(exitSystem, "unable to check "+c.Args[0]+": "+strerror(err))
}
