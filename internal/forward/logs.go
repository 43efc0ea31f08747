package forward

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/loglevel"
	"hinit/internal/pause"
	"hinit/internal/redact"
	"hinit/logrotate/reader"
)

// position records how far a log has been sent: up to a line with the time At. Several lines can have the same time, if they were
// read together. Same is the number of sent lines with the time At.
type position struct {
	At   time.Time `json:"at"`
	Same int       `json:"same"`
}

// logFile is a log with the position up to which it has been sent.
type logFile struct {
	position
	service, profile string             // the service that writes the log
	stop             context.CancelFunc // ends the goroutine that reads the log; nil without one
}

// logReader reads a log in its own goroutine and passes the records to Run.
type logReader struct {
	*Forwarder
	from  *logFile
	log   *slog.Logger
	at    position // position in the log after the last line
	begun bool     // the first line since the last call of [reader.Read] has been read
	skip  int      // number of lines still to skip, because the receiver already has them
	level loglevel.Tracker
	mask  redact.Masker
}

// read reads the log in the directory dir until ctx ends. The log is opened as the given user.
func (r *logReader) read(ctx context.Context, dir string, as *fsutil.Actor) {
	defer guard.Catch("reading a log")
	missing := func(why string) error { return r.sendGap(ctx, why) }
	logged := ""
	for ctx.Err() == nil {
		r.begun, r.skip = false, 0
		o := reader.Options{Dir: dir, N: -1, Since: r.at.At, Previous: true, Follow: true, Missing: missing}
		err := reader.Read(ctx, as, o, func(line []byte) error { return r.sendLine(ctx, line) })
		if err != nil && ctx.Err() == nil && logged != err.Error() {
			logged = err.Error()
			r.log.Error("cannot read a log", "error", err)
		}
		pause.For(ctx, statusEvery)
	}
}

// send passes a record to Run. It returns an error if ctx has ended.
func (r *logReader) send(ctx context.Context, record Record) error {
	record.log, record.line = r.from, r.at
	pause.Send(ctx, r.records, record)
	return ctx.Err()
}

func (r *logReader) sendGap(ctx context.Context, why string) error {
	r.log.Warn("lines are lost", "why", why)
	return r.send(ctx, gapRecord(why))
}

func (r *logReader) sendLine(ctx context.Context, text []byte) error {
	if r.Mask {
		text = r.mask.Hide(text, nil)
	}
	at, message, dated := reader.Split(text)
	level := r.level.Of(message)
	if !r.begun && !r.at.At.IsZero() { // this is the first line that is not older than the saved position
		if at.Equal(r.at.At) {
			r.skip = r.at.Same
		} else if err := r.sendGap(ctx, "files were removed before they could be sent"); err != nil {
			return err
		}
	}
	r.begun = true
	if r.skip > 0 {
		r.skip--
		return nil
	}
	if dated && !at.Equal(r.at.At) {
		r.at = position{At: at}
	}
	r.at.Same++
	return r.send(ctx, Record{Time: r.at.At, Kind: KindLog, Text: strings.ToValidUTF8(string(message), "\uFFFD"), Level: level})
}
