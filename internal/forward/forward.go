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
	"path/filepath"
	"slices"
	"sync"
	"time"

	"hinit/client"
	"hinit/internal/backoff"
	"hinit/internal/fsutil"
	"hinit/internal/pause"
	"hinit/internal/redact"
	"hinit/logrotate/reader"
)

// Hinit is the connection to the hinit whose logs are sent. A [dial.Client] implements it.
type Hinit interface {
	Status(ctx context.Context, names ...string) (client.Status, error)
	Events(ctx context.Context, o client.EventOptions, fn func(client.Event) error) error
}

// Forwarder sends the output of services, and events, to a sink.
type Forwarder struct {
	Hinit  Hinit
	LogsAs func(client.Init) (*fsutil.Actor, error) // returns the user that log files are opened as
	Sink   Sink
	State  string   // path of the positions file, see [Positions]
	Except []string // services whose logs are not sent, such as the forwarder itself, whose log would never end
	Mask   bool     // hide secrets that have a known form
	Log    *slog.Logger

	Pause    time.Duration // time to collect records for a batch; 0 is 250 ms
	Patience time.Duration // time limit for the receiver's answer; 0 is 30 s

	records chan Record // records from the goroutines that read logs
	readers sync.WaitGroup
	tails   map[string]*tail // the logs that are being read, by directory
	started time.Time        // start time of the hinit that answers the requests
	asked   time.Time        // time of the last request to hinit for its logs
	saved   time.Time        // time when the positions were last saved
	now     Positions
	dirty   bool // the field now has changes that must be saved
}

// Counts are the totals of a Forwarder since its positions file was created.
type Counts struct {
	Sent     uint64 `json:"sent"`
	Refused  uint64 `json:"refused"`
	Gaps     uint64 `json:"gaps"`
	Failures uint64 `json:"failures"`
}

// Positions is the content of the positions file, which records how far logs and events have been sent.
type Positions struct {
	Logs    map[string]position `json:"logs"` // position in each log, by its directory
	Events  eventPosition       `json:"events"`
	Counts  Counts              `json:"counts"`
	Waiting time.Time           `json:"waiting,omitzero"` // time of the oldest record that is being sent; zero when all are sent
}

type eventPosition struct {
	Started time.Time `json:"started"` // start time of the hinit that Seq belongs to
	Seq     uint64    `json:"seq"`
}

const (
	maxBatchRecords = 2000    // maximum number of records in a batch
	maxBatchBytes   = 4 << 20 // maximum size of the text in a batch, in bytes
	statusEvery     = 2 * time.Second
	saveEvery       = time.Second
	longestWait     = 10 * time.Minute // maximum pause that a receiver may ask for
	maxStateSize    = 64 << 10         // maximum size of the positions file in bytes
)

// retries defines the delays between two attempts to send a batch.
var retries = backoff.Policy{Initial: 200 * time.Millisecond, Max: 30 * time.Second, Factor: 2, Jitter: 0.5}

// Counts returns the totals since the positions file was created. Call Counts after Run.
func (f *Forwarder) Counts() Counts { return f.now.Counts }

// Run sends logs and events until ctx ends. It returns an error if it can't use the positions file, because without this file it
// might send the same lines again and again.
func (f *Forwarder) Run(ctx context.Context) error {
	f.tails, f.records = make(map[string]*tail), make(chan Record)
	if err := f.load(); err != nil {
		return err
	}
	reading, stop := context.WithCancel(ctx)
	defer f.readers.Wait()
	defer stop()
	for ctx.Err() == nil {
		batch := f.collect(reading)
		waiting := time.Time{}
		if len(batch) > 0 {
			waiting = batch[0].Time
		}
		f.dirty = f.dirty || !waiting.Equal(f.now.Waiting)
		f.now.Waiting = waiting
		if len(batch) > 0 && !f.deliver(ctx, batch) {
			break
		}
		for _, r := range batch {
			if r.dir != "" {
				f.now.Logs[r.dir] = r.line
			} else {
				f.now.Events = r.events
			}
			f.dirty = true
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

// collect collects records of events and log lines until the batch is full or f.Pause is over. If the last request is older than
// statusEvery, it first asks hinit for new logs and events.
func (f *Forwarder) collect(ctx context.Context) (batch []Record) {
	if time.Since(f.asked) > statusEvery {
		f.asked = time.Now()
		if err := f.findLogs(ctx); err == nil {
			batch = f.readEvents(ctx)
		} else if ctx.Err() == nil {
			f.Log.Debug("cannot ask hinit", "error", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(f.Pause, 250*time.Millisecond))
	defer cancel()
	for size := 0; len(batch) < maxBatchRecords && size < maxBatchBytes; {
		select {
		case r := <-f.records:
			if r.Kind == KindGap {
				f.now.Counts.Gaps++
			}
			size += len(r.Text)
			batch = append(batch, r)
		case <-ctx.Done():
			return batch
		}
	}
	return batch
}

// findLogs asks hinit for the logs of its services, starts to read new logs, and forgets removed logs.
func (f *Forwarder) findLogs(ctx context.Context) error {
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
	owners, parents := make(map[string]*client.Service), make(map[string]bool)
	for i := range st.Services {
		s := &st.Services[i]
		if slices.Contains(f.Except, s.Name) || !filepath.IsAbs(s.Log) {
			continue
		}
		dir := filepath.Dir(s.Log)
		owners[dir], parents[filepath.Dir(dir)] = s, true
		if _, known := f.now.Logs[dir]; !known {
			f.now.Logs[dir] = position{}
		}
	}
	for dir, at := range f.now.Logs {
		s, t := owners[dir], f.tails[dir]
		removed := s == nil && !reader.Exists(as, dir)
		if s == nil {
			s = &client.Service{Name: filepath.Base(dir)}
		}
		same := t != nil && t.service == s.Name && t.profile == s.Profile
		// The positions file may contain any directory, so read only directories that are next to the log directory of a service.
		if !removed && (same || !parents[filepath.Dir(dir)]) {
			continue
		}
		if t != nil {
			t.stop()
		}
		if removed {
			delete(f.tails, dir)
			delete(f.now.Logs, dir)
			f.dirty = true
		} else {
			f.tails[dir] = f.read(ctx, dir, s, at, as)
		}
	}
	return nil
}

// readEvents returns records of the events that have happened in hinit since the position of the last sent event.
func (f *Forwarder) readEvents(ctx context.Context) (batch []Record) {
	at := f.now.Events
	if !at.Started.Equal(f.started) {
		at = eventPosition{Started: f.started}
	}
	limit, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	errFull := errors.New("the batch is full")
	err := f.Hinit.Events(limit, client.EventOptions{Since: at.Seq}, func(e client.Event) error {
		r := eventRecord(e)
		if e.Lost > 0 {
			f.now.Counts.Gaps++
			r = gapRecord("", "", fmt.Sprintf("%d events were forgotten before they could be sent", e.Lost))
		} else {
			at.Seq = e.Seq
		}
		if f.Mask {
			r.Text = redact.Text(r.Text)
		}
		r.events = at
		if batch = append(batch, r); len(batch) >= maxBatchRecords {
			return errFull
		}
		return nil
	})
	if err != nil && !errors.Is(err, errFull) {
		f.Log.Debug("cannot read the events", "error", err)
	}
	return batch
}

// deliver sends a batch again and again until the receiver accepts it or ctx ends, and reports whether it was accepted. It leaves
// out the records that the receiver refuses.
func (f *Forwarder) deliver(ctx context.Context, batch []Record) bool {
	counts := &f.now.Counts
	for failures := 0; ctx.Err() == nil; {
		limit, cancel := context.WithTimeout(ctx, cmp.Or(f.Patience, 30*time.Second))
		err := f.Sink.Send(limit, batch)
		cancel()
		var refused RefusedError
		var partial PartialError
		switch {
		case errors.As(err, &partial):
			n := min(partial.Refused, len(batch))
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
			if failures > 0 {
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
		if failures++; failures == 1 && ctx.Err() == nil {
			f.Log.Warn("cannot send, trying again", "records", len(batch), "error", err)
			if err := f.save(); err != nil { // the metrics read the time of the oldest waiting record from the file
				f.Log.Error("cannot save", "error", err)
			}
		}
		later, _ := errors.AsType[LaterError](err)
		pause.For(ctx, max(retries.Delay(failures, rand.Float64()), min(later.After, longestWait)))
	}
	return false
}

// ReadPositions reads a positions file as a user who may read it.
func ReadPositions(path string, as *fsutil.Actor) (p Positions, err error) {
	d, err := fsutil.OpenDir(filepath.Dir(path), as)
	if err != nil {
		return p, err
	}
	defer d.Close()
	err = p.read(d, filepath.Base(path))
	return p, err
}

func (p *Positions) read(d *fsutil.Dir, name string) error {
	text, err := d.ReadFile(name, maxStateSize)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, p)
}

// load reads the positions file. It creates a missing file, so that Run fails now if the file can't be written.
func (f *Forwarder) load() error {
	err := inDir(f.State, f.now.read)
	if f.now.Logs == nil {
		f.now.Logs = make(map[string]position)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return f.save()
	}
	if err != nil {
		return fmt.Errorf("cannot read the positions in %q: %w; remove the file to send everything again", f.State, err)
	}
	return nil
}

// save replaces the positions file atomically.
func (f *Forwarder) save() error {
	text, err := json.Marshal(&f.now)
	if err == nil {
		err = inDir(f.State, func(d *fsutil.Dir, name string) error {
			return d.Replace(name, text, fsutil.ReplaceOptions{Mode: 0o600})
		})
	}
	if err != nil {
		return fmt.Errorf("cannot save the positions in %q: %w", f.State, err)
	}
	f.saved, f.dirty = time.Now(), false
	return nil
}
