package logrotate

import (
	"errors"
	"strconv"

	"golang.org/x/sys/unix"
	"gopkg.in/natefinch/lumberjack.v2"
)

// writer wraps lumberjack, which only this type uses (decision record 6). It writes to a file that is already open. Lumberjack's
// own rotation is never used, because the agent controls all names in the log's directory.
type writer struct{ logger *lumberjack.Logger }

// neverRotate is the MaxSize for lumberjack, in megabytes. No log ever reaches it.
const neverRotate = 1 << 30

// attach makes w write to the open file fd, whose status is st. It fails without /proc.
//
// Lumberjack opens the file by its link in /proc/self/fd, which always leads to the open file, so the agent can't put another
// file there. Without /proc, lumberjack would create a file at that path.
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

// detach closes lumberjack's descriptor. Its error is ignored, because lumberjack buffers nothing that could be lost.
func (w writer) detach() { _ = w.logger.Close() }

// writers is a pool of writers. Lumberjack starts a goroutine for every writer and never ends it, so writers are reused. The
// caller must hold a lock that guards the pool.
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
