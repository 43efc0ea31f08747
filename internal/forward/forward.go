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
	"sync"
	"time"

	"hinit/client"
	"hinit/internal/fsutil"
	"hinit/internal/pause"
	"hinit/internal/redact"
	"hinit/logrotate/reader"
)

// Hinit is the hinit whose logs are sent. A [dial.Client] implements it.
type Hinit interface {
	Status(ctx context.Context, names ...string) (client.Status, error)
	Events(ctx context.Context, o client.EventOptions, fn func(client.Event) error) error
}

// Forwarder sends the output of services, and events, to a sink.
type Forwarder struct {
	Hinit  Hinit
	LogsAs func(client.Init) (*fsutil.Actor, error) // returns the identity that opens log files
	Sink   Sink
	State  string   // file with the positions
	Except []string // services whose logs are not sent; its own log would never end
	Mask   bool     // hide secrets of known shapes
	Log    *slog.Logger

	Pause    time.Duration // how long lines are collected for a batch; 0 is 250 ms
	Patience time.Duration // limit for one answer of the receiver; 0 is 30 s

	lines   chan line // from the goroutine of each log
	readers sync.WaitGroup
	tails   map[string]*tail // by directory
	started time.Time        // start time of the hinit that answers
	looked  time.Time        // when hinit was last asked for its logs
	saved   time.Time
	now     Positions
	dirty   bool
}

// Counts are the totals of a Forwarder since its file of positions was created.
type Counts struct {
	Sent     uint64 `json:"sent"`
	Refused  uint64 `json:"refused"`
	Gaps     uint64 `json:"gaps"`
	Failures uint64 `json:"failures"`
}

// Positions are the content of the file of positions.
type Positions struct {
	Logs    map[string]position `json:"logs"` // by directory
	Events  eventPosition       `json:"events"`
	Counts  Counts              `json:"counts"`
	Waiting time.Time           `json:"waiting,omitzero"` // time of the oldest record that is being sent; zero when all are sent
}

type eventPosition struct {
	Started time.Time `json:"started"` // start time of the hinit whose events they are
	Seq     uint64    `json:"seq"`
}

const (
	mostRecords = 2000    // in a batch
	mostBytes   = 4 << 20 // of text in a batch
	lookEvery   = 2 * time.Second
	saveEvery   = time.Second
	firstRetry  = 200 * time.Millisecond
	lastRetry   = 30 * time.Second
	longestWait = 10 * time.Minute // longest pause that a receiver may ask for
)

// Counts returns the totals. Call it after Run.
func (f *Forwarder) Counts() Counts { return f.now.Counts }

// Run sends until ctx ends. It returns an error if it can't use the file of positions, because it might send the same lines for
// ever.
func (f *Forwarder) Run(ctx context.Context) error {
	f.tails, f.lines = make(map[string]*tail), make(chan line)
	if err := f.load(); err != nil {
		return err
	}
	reading, stop := context.WithCancel(ctx)
	defer f.readers.Wait()
	defer stop()
	for ctx.Err() == nil {
		batch, events, reached := f.collect(reading)
		if len(batch) > 0 {
			f.now.Waiting = batch[0].Time
			if !f.deliver(ctx, batch) {
				break
			}
			for t, at := range reached {
				t.done = at
			}
			f.now.Events, f.dirty = events, true
		} else if !f.now.Waiting.IsZero() {
			f.now.Waiting, f.dirty = time.Time{}, true
		}
		if f.dirty && (len(batch) == 0 || time.Since(f.saved) > saveEvery) {
			if err := f.save(); err != nil {
				return err
			}
		}
	}
	if f.dirty {
		return f.save()
	}
	return nil
}

// collect collects events and lines until the batch is full or a pause is over. It returns the batch with the positions after it.
func (f *Forwarder) collect(ctx context.Context) (batch []Record, events eventPosition, reached map[*tail]position) {
	events, reached = f.now.Events, make(map[*tail]position)
	if time.Since(f.looked) > lookEvery {
		f.looked = time.Now()
		if err := f.look(ctx); err != nil && ctx.Err() == nil {
			f.Log.Debug("cannot ask hinit", "error", err)
		} else {
			batch, events = f.readEvents(ctx)
		}
	}
	end := time.After(cmp.Or(f.Pause, 250*time.Millisecond))
	for size := 0; len(batch) < mostRecords && size < mostBytes; {
		select {
		case l := <-f.lines:
			if l.record.Kind == KindGap {
				f.now.Counts.Gaps++
			}
			size += len(l.record.Text)
			batch, reached[l.tail] = append(batch, l.record), l.at
		case <-end:
			return batch, events, reached
		case <-ctx.Done():
			return batch, events, reached
		}
	}
	return batch, events, reached
}

// look asks hinit for its logs, and starts to read new ones.
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
	as, err := f.LogsAs(st.Init)
	if err != nil {
		return err
	}
	f.started = st.Init.StartedAt
	there, beside := make(map[string]*client.Service), make(map[string]bool)
	for i := range st.Services {
		s := &st.Services[i]
		if s.Log == "" || slices.Contains(f.Except, s.Name) || !filepath.IsAbs(s.Log) {
			continue
		}
		dir := filepath.Dir(s.Log)
		there[dir], beside[filepath.Dir(dir)] = s, true
		if f.tails[dir] == nil {
			f.tails[dir] = &tail{dir: dir}
		}
	}
	for dir, t := range f.tails {
		service, profile := filepath.Base(dir), ""
		if s := there[dir]; s != nil {
			service, profile = s.Name, s.Profile
		} else if !reader.Exists(as, dir) {
			t.end()
			delete(f.tails, dir)
			f.dirty = true
			continue
		}
		if !beside[filepath.Dir(dir)] || t.stop != nil && t.service == service && t.profile == profile { // the file may name any directory
			continue
		}
		t.end()
		f.tails[dir] = &tail{dir: dir, service: service, profile: profile, done: t.done}
		f.start(ctx, f.tails[dir], as)
	}
	return nil
}

func (t *tail) end() {
	if t.stop != nil {
		t.stop()
	}
}

// readEvents returns the events after the last position, and the position after them.
func (f *Forwarder) readEvents(ctx context.Context) (batch []Record, at eventPosition) {
	if at = f.now.Events; !at.Started.Equal(f.started) {
		at = eventPosition{Started: f.started}
	}
	limit, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	errEnough := errors.New("enough")
	err := f.Hinit.Events(limit, client.EventOptions{Since: at.Seq}, func(e client.Event) error {
		if e.Lost > 0 {
			f.now.Counts.Gaps++
			batch = append(batch, gap("", "", fmt.Sprintf("%d events were forgotten before they could be sent", e.Lost)))
			return nil
		}
		r := eventRecord(e)
		if f.Mask {
			r.Text = redact.Text(r.Text)
		}
		batch, at.Seq = append(batch, r), e.Seq
		if len(batch) >= mostRecords {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		f.Log.Debug("cannot read the events", "error", err)
	}
	return batch, at
}

// deliver sends a batch until the receiver accepts it, and reports whether it did. It leaves out records that the receiver refuses.
func (f *Forwarder) deliver(ctx context.Context, batch []Record) bool {
	retry, told, counts := firstRetry, false, &f.now.Counts
	for ctx.Err() == nil {
		limit, cancel := context.WithTimeout(ctx, cmp.Or(f.Patience, 30*time.Second))
		err := f.Sink.Send(limit, batch)
		cancel()
		var refused *RefusedError
		var partial *PartialError
		switch {
		case errors.As(err, &partial):
			n := min(max(partial.Refused, 0), len(batch))
			counts.Sent += uint64(len(batch) - n)
			counts.Refused += uint64(n)
			if n > 0 {
				f.Log.Error("the receiver has left records out", "records", n, "of", len(batch), "error", err)
			} else {
				f.Log.Warn("the receiver warns", "warning", err)
			}
			return true
		case err == nil:
			counts.Sent += uint64(len(batch))
			if told {
				f.Log.Info("the receiver takes records again")
			}
			return true
		case errors.As(err, &refused) && len(batch) == 1:
			counts.Refused++
			f.Log.Error("the receiver refuses a record, which is left out", "service", batch[0].Service, "error", err)
			return true
		case errors.As(err, &refused):
			return f.deliver(ctx, batch[:len(batch)/2]) && f.deliver(ctx, batch[len(batch)/2:])
		}
		counts.Failures++
		if !told && ctx.Err() == nil {
			told = true
			f.Log.Warn("cannot send, trying again", "records", len(batch), "error", err)
			if err := f.save(); err != nil { // the metrics show since when records wait
				f.Log.Error("cannot save", "error", err)
			}
		}
		after := retry/2 + time.Duration(rand.Int64N(int64(retry)))
		if later, is := errors.AsType[*LaterError](err); is {
			after = max(after, min(later.After, longestWait))
		}
		pause.For(ctx, after)
		retry = min(2*retry, lastRetry)
	}
	return false
}

// ReadPositions reads a file of positions with an identity that may read it. It returns nil without a valid file.
func ReadPositions(path string, as *fsutil.Actor) *Positions {
	d, err := fsutil.OpenDir(filepath.Dir(path), as)
	if err != nil {
		return nil
	}
	defer d.Close()
	p := new(Positions)
	if text, err := d.ReadFile(filepath.Base(path), mostState); err != nil || json.Unmarshal(text, p) != nil {
		return nil
	}
	return p
}

// mostState is the largest size of a file of positions.
const mostState = 64 << 20

// load reads the positions. The agent may own the directory of the file, so load follows no link there.
func (f *Forwarder) load() error {
	err := f.inState(func(d *fsutil.Dir, name string) error {
		text, err := d.ReadFile(name, mostState)
		if err != nil {
			return err
		}
		return json.Unmarshal(text, &f.now)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return f.save() // fails now if the file can't be written
	}
	if err != nil {
		return fmt.Errorf("cannot read the positions in %q: %w; remove the file to send everything again", f.State, err)
	}
	for dir, p := range f.now.Logs {
		f.tails[dir] = &tail{dir: dir, done: p}
	}
	return nil
}

// save replaces the file of positions atomically.
func (f *Forwarder) save() error {
	f.now.Logs = make(map[string]position, len(f.tails))
	for dir, t := range f.tails {
		f.now.Logs[dir] = t.done
	}
	text, err := json.Marshal(&f.now)
	if err == nil {
		err = f.inState(func(d *fsutil.Dir, name string) error {
			return d.Replace(name, text, fsutil.ReplaceOptions{Mode: 0o600})
		})
	}
	if err != nil {
		return fmt.Errorf("cannot save the positions in %q: %w", f.State, err)
	}
	f.saved, f.dirty = time.Now(), false
	return nil
}

// inState calls fn with the directory of the file of positions, and its name there.
func (f *Forwarder) inState(fn func(d *fsutil.Dir, name string) error) error {
	d, err := openDir(filepath.Dir(f.State))
	if err != nil {
		return err
	}
	defer d.Close()
	return fn(d, filepath.Base(f.State))
}

// openDir opens the directory of a file that this process writes. The agent may own directories on the path, so root follows no link
// there.
func openDir(dir string) (*fsutil.Dir, error) {
	if full, err := filepath.Abs(dir); err == nil && os.Geteuid() == 0 {
		return fsutil.OpenReal(full, nil)
	}
	return fsutil.OpenDir(dir, fsutil.Self())
}
