package forward

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"hinit/client"
	"hinit/internal/redact"
)

// The kinds of a Record.
const (
	KindLog   = "log"
	KindEvent = "event"
	KindGap   = "gap" // lines are missing here
)

// Record is a line, an event, or word of a gap.
type Record struct {
	Time    time.Time `json:"time"`
	Kind    string    `json:"kind"`
	Service string    `json:"service"`
	Profile string    `json:"profile,omitempty"`
	Text    string    `json:"message"`
}

// Sink takes records. An error that is not a [RefusedError] is tried again. Send may be called after an error.
type Sink interface {
	Send(ctx context.Context, records []Record) error
	Close() error
}

// RefusedError is a receiver's word that it will never take something.
type RefusedError struct{ Reason string }

// Error implements error.
func (r *RefusedError) Error() string { return r.Reason }

// PartialError is a receiver's word that it has taken all but some of the records, and that they must not come again. With none left out
// it is a warning.
type PartialError struct {
	Refused int
	Reason  string
}

// Error implements error.
func (p *PartialError) Error() string { return p.Reason }

// LaterError is a receiver's word when it may be asked again.
type LaterError struct {
	After time.Duration
	Err   error
}

// Error implements error.
func (l *LaterError) Error() string { return l.Err.Error() }

// Unwrap returns why.
func (l *LaterError) Unwrap() error { return l.Err }

// Hinit is the hinit whose logs are sent, as a [client.Client] is.
type Hinit interface {
	Status(ctx context.Context, names ...string) (client.Status, error)
	Events(ctx context.Context, o client.EventOptions, fn func(client.Event) error) error
}

// Forwarder sends what services write, and events, to a sink.
type Forwarder struct {
	Hinit  Hinit
	Sink   Sink
	State  string   // file with the positions
	Except []string // services whose logs stay here: its own would feed itself
	Mask   bool     // secrets of known shapes are hidden
	Log    *slog.Logger

	Pause    time.Duration // between looks at the files; 0 is 250 ms
	Patience time.Duration // for one answer of the receiver; 0 is 30 s

	tails   map[string]*tail // by directory
	events  eventPosition
	sent    eventPosition
	started time.Time
	looked  time.Time // when hinit was asked last
	saved   time.Time
	dirty   bool
	Counts  Counts
}

// Counts are what a Forwarder has done.
type Counts struct{ Sent, Refused, Gaps, Failures uint64 }

type eventPosition struct {
	Started time.Time `json:"started"` // of the hinit whose events they are
	Seq     uint64    `json:"seq"`
}

// state is what is saved.
type state struct {
	Logs   map[string]position `json:"logs"` // by directory
	Events eventPosition       `json:"events"`
}

const (
	mostRecords = 2000 // in a batch
	lookEvery   = 2 * time.Second
	saveEvery   = time.Second
	firstRetry  = 200 * time.Millisecond
	lastRetry   = 30 * time.Second
	longestWait = 10 * time.Minute // that a receiver may ask for
)

// Run sends until ctx ends. The error is about the file of the positions: without it lines could come again and again.
func (f *Forwarder) Run(ctx context.Context) error {
	f.tails = make(map[string]*tail)
	if err := f.load(); err != nil {
		return err
	}
	defer func() {
		for _, t := range f.tails {
			t.close()
		}
	}()
	for ctx.Err() == nil {
		batch := f.collect(ctx)
		if len(batch) > 0 {
			if f.deliver(ctx, batch) {
				for _, t := range f.tails {
					t.done = t.here
				}
				f.sent, f.dirty = f.events, true
			} else {
				for _, t := range f.tails {
					t.rewind()
				}
				f.events = f.sent
			}
		}
		if f.dirty && (len(batch) == 0 || time.Since(f.saved) > saveEvery) {
			if err := f.save(); err != nil {
				return err
			}
		}
		if len(batch) == 0 {
			// Looking at many files takes its time: never more than a few percent of a core.
			wait(ctx, max(cmp.Or(f.Pause, 250*time.Millisecond), time.Duration(len(f.tails))*2*time.Millisecond))
		}
	}
	if f.dirty {
		return f.save()
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// collect reads a batch: of each log some lines, and the events.
func (f *Forwarder) collect(ctx context.Context) (batch []Record) {
	if time.Since(f.looked) > lookEvery {
		f.looked = time.Now()
		if err := f.look(ctx); err != nil && ctx.Err() == nil {
			f.Log.Debug("cannot ask hinit", "error", err)
		} else {
			batch = f.readEvents(ctx)
		}
	}
	for _, t := range f.tails {
		if len(batch) >= mostRecords {
			break
		}
		records, gap, err := t.read()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			f.Log.Error("cannot read a log", "service", t.service, "error", err)
		}
		if gap {
			f.Counts.Gaps++
			const text = "[hinit-web] lines are missing here: they were removed before they could be sent"
			batch = append(batch, Record{Time: time.Now(), Kind: KindGap, Service: t.service, Profile: t.profile, Text: text})
			f.Log.Warn("lines are lost: they were removed before they could be sent", "service", t.service)
		}
		batch = append(batch, records...)
	}
	return batch
}

// look finds out which logs there are.
func (f *Forwarder) look(ctx context.Context) error {
	limit, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	st, err := f.Hinit.Status(limit)
	if err != nil {
		return err
	}
	if st.Version != client.StatusVersion {
		return errors.New("what answers is not hinit")
	}
	f.started = st.Init.StartedAt
	there := make(map[string]bool)
	for _, s := range st.Services {
		if s.Log == "" || slices.Contains(f.Except, s.Name) || !filepath.IsAbs(s.Log) {
			continue
		}
		dir := filepath.Dir(s.Log)
		there[dir] = true
		t := f.tails[dir]
		if t == nil {
			t = f.newTail(dir)
		}
		t.service, t.profile = s.Name, s.Profile
	}
	for dir, t := range f.tails {
		if !there[dir] && !exists(dir) {
			t.close()
			delete(f.tails, dir)
			f.dirty = true
		}
	}
	return nil
}

func (f *Forwarder) newTail(dir string) *tail {
	t := &tail{dir: dir, service: filepath.Base(dir)}
	if f.Mask {
		t.mask = new(redact.Masker)
	}
	f.tails[dir] = t
	return t
}

// readEvents returns the events since the last ones.
func (f *Forwarder) readEvents(ctx context.Context) (batch []Record) {
	if !f.events.Started.Equal(f.started) {
		f.events = eventPosition{Started: f.started}
	}
	limit, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var mask redact.Masker
	errEnough := errors.New("enough")
	err := f.Hinit.Events(limit, client.EventOptions{Since: f.events.Seq}, func(e client.Event) error {
		if e.Lost > 0 {
			f.Counts.Gaps++
			batch = append(batch, Record{Time: time.Now(), Kind: KindGap, Text: fmt.Sprintf("[hinit-web] %d events are missing here", e.Lost)})
			return nil
		}
		text := e.Reason
		if e.To != "" {
			text = e.From + " -> " + e.To + ": " + e.Reason
		}
		if f.Mask {
			text = string(mask.Hide([]byte(text), nil))
		}
		batch = append(batch, Record{Time: e.At, Kind: KindEvent, Service: e.Service, Text: text})
		f.events.Seq = e.Seq
		if len(batch) >= mostRecords {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		f.Log.Debug("cannot read the events", "error", err)
	}
	return batch
}

// deliver sends a batch until it is taken, and says whether it was. What the receiver refuses is left out, one record at a time.
func (f *Forwarder) deliver(ctx context.Context, batch []Record) bool {
	retry, told := firstRetry, false
	for ctx.Err() == nil {
		limit, cancel := context.WithTimeout(ctx, cmp.Or(f.Patience, 30*time.Second))
		err := f.Sink.Send(limit, batch)
		cancel()
		var refused *RefusedError
		var partial *PartialError
		switch {
		case errors.As(err, &partial):
			n := min(max(partial.Refused, 0), len(batch))
			f.Counts.Sent += uint64(len(batch) - n)
			f.Counts.Refused += uint64(n)
			if n > 0 {
				f.Log.Error("the receiver has left records out", "records", n, "of", len(batch), "error", err)
			} else {
				f.Log.Warn("the receiver warns", "warning", err)
			}
			return true
		case err == nil:
			f.Counts.Sent += uint64(len(batch))
			if told {
				f.Log.Info("the receiver takes records again")
			}
			return true
		case errors.As(err, &refused) && len(batch) == 1:
			f.Counts.Refused++
			f.Log.Error("the receiver refuses a record, which is left out", "service", batch[0].Service, "error", err)
			return true
		case errors.As(err, &refused):
			return f.deliver(ctx, batch[:len(batch)/2]) && f.deliver(ctx, batch[len(batch)/2:])
		}
		f.Counts.Failures++
		if !told && ctx.Err() == nil {
			told = true
			f.Log.Warn("cannot send, trying again", "records", len(batch), "error", err)
		}
		pause := retry/2 + time.Duration(rand.Int64N(int64(retry)))
		if later, is := errors.AsType[*LaterError](err); is {
			pause = max(pause, min(later.After, longestWait))
		}
		wait(ctx, pause)
		retry = min(2*retry, lastRetry)
	}
	return false
}

func (f *Forwarder) load() error {
	text, err := os.ReadFile(f.State)
	if errors.Is(err, fs.ErrNotExist) {
		return f.save() // it must be possible
	}
	var st state
	if err == nil {
		err = json.Unmarshal(text, &st)
	}
	if err != nil {
		return fmt.Errorf("cannot read the positions in %q: %w; remove the file to send everything again", f.State, err)
	}
	for dir, p := range st.Logs {
		t := f.newTail(dir)
		t.done, t.here = p, p
	}
	f.events, f.sent = st.Events, st.Events
	return nil
}

// save writes the positions so that either the old or the new ones are there.
func (f *Forwarder) save() error {
	st := state{Logs: make(map[string]position, len(f.tails)), Events: f.sent}
	for dir, t := range f.tails {
		st.Logs[dir] = t.done
	}
	text, err := json.Marshal(st)
	if err != nil {
		return err
	}
	next := f.State + ".new"
	file, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err == nil {
		_, err = file.Write(text)
		err = errors.Join(err, file.Sync(), file.Close())
	}
	if err == nil {
		err = os.Rename(next, f.State)
	}
	if err != nil {
		return fmt.Errorf("cannot save the positions in %q: %w", f.State, err)
	}
	f.saved, f.dirty = time.Now(), false
	return nil
}
