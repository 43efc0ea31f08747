package forward

import (
	"bytes"
	"context"
	"strings"
	"time"

	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/loglevel"
	"hinit/internal/pause"
	"hinit/internal/redact"
	"hinit/logrotate/reader"
)

// position says how far a log has been sent: up to a line with the time At, where Same counts the sent lines with this time. Lines
// that were read at once have the same time.
type position struct {
	At   time.Time `json:"at"`
	Same int       `json:"same"`
}

// tail is one log that is being sent.
type tail struct {
	dir, service, profile string

	done position // position of the last line that the receiver has; only the goroutine of Run uses it
	stop context.CancelFunc
}

// line is a line of a log with the position after it. The goroutine of the log passes it to Run.
type line struct {
	tail   *tail
	at     position
	record Record
}

// follow reads a log from a position until ctx ends.
func (f *Forwarder) follow(ctx context.Context, t *tail, as *fsutil.Actor, from position) {
	told := ""
	for ctx.Err() == nil {
		r := &reading{Forwarder: f, tail: t, from: from, here: from}
		o := reader.Options{Dir: t.dir, N: -1, Since: from.At, Previous: true, Follow: true, Missing: func(why string) error { return r.missing(ctx, why) }}
		err := reader.Read(ctx, as, o, func(line []byte) error { return r.line(ctx, line) })
		if err != nil && ctx.Err() == nil && told != err.Error() {
			told = err.Error()
			f.Log.Error("cannot read a log", "service", t.service, "error", err)
		}
		from = r.here
		pause.For(ctx, lookEvery)
	}
}

// start starts to read a log.
func (f *Forwarder) start(ctx context.Context, t *tail, as *fsutil.Actor) {
	ctx, t.stop = context.WithCancel(ctx)
	from := t.done
	f.readers.Add(1)
	guard.Go("reading a log", func() {
		defer f.readers.Done()
		f.follow(ctx, t, as, from)
	})
}

// reading is the state of reading a log.
type reading struct {
	*Forwarder
	tail  *tail
	from  position
	here  position
	begun bool
	skip  int // lines that are already sent
	level loglevel.Tracker
	mask  redact.Masker
}

func (r *reading) hand(ctx context.Context, record Record) error {
	select {
	case r.lines <- line{r.tail, r.here, record}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *reading) missing(ctx context.Context, why string) error {
	r.Log.Warn("lines are lost", "service", r.tail.service, "why", why)
	return r.hand(ctx, gap(r.tail.service, r.tail.profile, why))
}

func (r *reading) line(ctx context.Context, text []byte) error {
	if r.Mask {
		text = bytes.TrimSuffix(r.mask.Hide(append(bytes.Clone(text), '\n'), nil), []byte{'\n'})
	}
	at, message, dated := reader.Split(text)
	level := r.level.Of(message)
	if !r.begun && !r.from.At.IsZero() { // the first line at or after the time of the position
		if at.Equal(r.from.At) {
			r.skip = r.from.Same
		} else if err := r.missing(ctx, "files were removed before they could be sent"); err != nil {
			return err
		}
	}
	r.begun = true
	if r.skip > 0 {
		r.skip--
		return nil
	}
	if dated && !at.Equal(r.here.At) {
		r.here = position{At: at}
	}
	r.here.Same++
	return r.hand(ctx, Record{r.here.At, KindLog, r.tail.service, r.tail.profile, strings.ToValidUTF8(string(message), "\uFFFD"), level})
}
