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

// logOwner is the service that writes a log.
type logOwner struct{ service, profile string }

// read starts a goroutine that reads the log in the directory dir until ctx ends, and passes the records to Run. The argument
// from is the position at which it begins, and as is the user who reads the log. The returned function ends the goroutine.
func (f *Forwarder) read(ctx context.Context, dir string, from position, as *fsutil.Actor) (stop context.CancelFunc) {
	ctx, stop = context.WithCancel(ctx)
	log := f.Log.With("dir", dir)
	f.readers.Go(func() {
		defer guard.Catch("reading a log")
		logged := ""
		for ctx.Err() == nil {
			r := &reading{Forwarder: f, log: log, dir: dir, from: from, at: from}
			o := reader.Options{Dir: dir, N: -1, Since: from.At, Previous: true, Follow: true, Missing: func(why string) error { return r.sendGap(ctx, why) }}
			err := reader.Read(ctx, as, o, func(line []byte) error { return r.sendLine(ctx, line) })
			if err != nil && ctx.Err() == nil && logged != err.Error() {
				logged = err.Error()
				log.Error("cannot read a log", "error", err)
			}
			from = r.at
			pause.For(ctx, statusEvery)
		}
	})
	return stop
}

// reading is the state of one call of [reader.Read] for a log.
type reading struct {
	*Forwarder
	log   *slog.Logger
	dir   string
	from  position // position in the log at which the reading started
	at    position // position in the log after the last line
	begun bool     // the first line of the log has been read
	skip  int      // number of lines still to skip, because the receiver already has them
	level loglevel.Tracker
	mask  redact.Masker
}

// send passes a record to Run. It returns an error if ctx ends first.
func (r *reading) send(ctx context.Context, record Record) error {
	record.dir, record.line = r.dir, r.at
	if !pause.Send(ctx, r.records, record) {
		return ctx.Err()
	}
	return nil
}

func (r *reading) sendGap(ctx context.Context, why string) error {
	r.log.Warn("lines are lost", "why", why)
	return r.send(ctx, gapRecord(why))
}

func (r *reading) sendLine(ctx context.Context, text []byte) error {
	if r.Mask {
		text = r.mask.Hide(text, nil)
	}
	at, message, dated := reader.Split(text)
	level := r.level.Of(message)
	if !r.begun && !r.from.At.IsZero() { // this is the first line that is not older than the saved position
		if at.Equal(r.from.At) {
			r.skip = r.from.Same
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
