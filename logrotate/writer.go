package logrotate

import (
	"errors"
	"strconv"

	"golang.org/x/sys/unix"
	"gopkg.in/natefinch/lumberjack.v2"
)

// writer is the only user of lumberjack in this package (decision record 6). It writes to an open file. Lumberjack's own rotation
// never begins, because the agent controls all names in the log's directory.
type writer struct{ logger *lumberjack.Logger }

// neverRotate is a MaxSize for lumberjack, in megabytes, so large that no log reaches it.
const neverRotate = 1 << 30

// attach makes the open file fd, whose status is st, the target of writes. It fails without /proc.
//
// The link below /proc/self/fd leads to the open file itself, so the agent can't replace it. Without /proc lumberjack would
// create a file with that name.
func (w writer) attach(fd int, st *unix.Stat_t) error {
	w.logger.Filename = "/proc/self/fd/" + strconv.Itoa(fd)
	var link unix.Stat_t
	if err := unix.Stat(w.logger.Filename, &link); err != nil || link.Dev != st.Dev || link.Ino != st.Ino {
		return errors.New("/proc is needed and not mounted")
	}
	_, err := w.logger.Write(nil) // an empty write only opens the file
	if err != nil {
		w.detach()
	}
	return err
}

// detach closes lumberjack's descriptor. It ignores the error, because no buffered byte can be lost.
func (w writer) detach() { _ = w.logger.Close() }

func (w writer) write(p []byte) (int, error) { return w.logger.Write(p) }

// writers is a pool of writers. Lumberjack starts a goroutine for every writer and never ends it, so writers are used again. The
// caller's lock guards the pool.
type writers struct{ spare []writer }

func (p *writers) get() writer {
	if n := len(p.spare); n > 0 {
		w := p.spare[n-1]
		p.spare = p.spare[:n-1]
		return w
	}
	return writer{&lumberjack.Logger{MaxSize: neverRotate}}
}

func (p *writers) put(w writer) { p.spare = append(p.spare, w) }
