// Package forward sends logs and events to a collector: as OTLP, to Loki, as syslog, or as JSON lines to a file.
//
// It reads log files, across their rotations; these files are its only buffer. A slow or unreachable receiver delays only the
// reading of the logs, not the services. Each line arrives at least once, because the position in a log is saved only after the
// receiver has accepted the line. A position consists of the time of the last line and a count, so it stays valid after a
// rotation, compression or restart. If a rotation removes lines before they are sent, the receiver gets a record of the gap, and
// the gap is counted. At most one batch is in memory.
//
// A [Sink] encodes and sends records, and Run repeats a send that fails. [Forwarder.Run] owns a goroutine for each log, and ends
// these goroutines before it returns.
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
	"strings"
	"sync"
	"time"

	"github.com/samber/lo"

	"hinit/client"
	"hinit/internal/backoff"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/loglevel"
	"hinit/internal/pause"
	"hinit/internal/redact"
	"hinit/logrotate/reader"
)

// HinitClient is the connection to the hinit whose logs are sent. [dial.Client] implements it.
type HinitClient interface {
	Status(ctx context.Context, names ...string) (client.Status, error)
	Events(ctx context.Context, o client.EventOptions, fn func(client.Event) error) error
}

// Forwarder sends the output of services, and events, to a sink.
type Forwarder struct {
	Hinit            HinitClient
	LogReader        func(client.Init) (*fsutil.Actor, error) // returns the identity for opening log files
	Sink             Sink
	PositionsFile    string   // path of the positions file, see [Positions]
	ExcludedServices []string // services whose logs are not sent; for example the forwarder itself, whose log would otherwise never end
	MaskSecrets      bool     // whether to hide secrets of known shapes
	Log              *slog.Logger

	BatchTime time.Duration // how long to collect records for a batch; 0: 250 ms
	Timeout   time.Duration // time limit for an answer of the receiver; 0: 30 s

	records          chan Record // records from the goroutines that read logs
	readers          sync.WaitGroup
	statusAskedAt    time.Time // when hinit was last asked for its logs
	savedAt          time.Time // when the positions were last saved
	positions        Positions
	positionsChanged bool // whether the positions have changed since the last save
	saveFailed       bool // whether the last attempt to save the positions has failed
	refusalLoggedAt  time.Time
}

// Counts are totals since the positions file was created.
type Counts struct {
	Sent           uint64 `json:"sent"`
	RefusedRecords uint64 `json:"refused"`
	Gaps           uint64 `json:"gaps"`
	Failures       uint64 `json:"failures"`
}

// Positions is the content of the positions file: the positions in logs and events.
type Positions struct {
	Logs         map[string]*logFile `json:"logs"` // logs by their directory
	Events       eventPosition       `json:"events"`
	Counts       Counts              `json:"counts"`
	OldestUnsent time.Time           `json:"waiting,omitzero"` // time of the oldest unsent record; zero if all are sent
}

type eventPosition struct {
	InitStartedAt time.Time `json:"started"` // start of the hinit whose events Seq counts
	Seq           uint64    `json:"seq"`
}

const (
	maxBatchRecords = 2000    // number of records at which a batch is full; the events of one request may exceed it
	maxBatchBytes   = 4 << 20 // maximum size in bytes of all texts in a batch
	statusInterval  = 2 * time.Second
	saveInterval    = time.Second
	maxStateSize    = 64 << 20 // maximum size of the positions file in bytes, enough for 100,000 profiles
)

// retryDelays has the delays between attempts to send a batch.
var retryDelays = backoff.Policy{Initial: 200 * time.Millisecond, Max: 30 * time.Second, Factor: 2, Jitter: 0.5}

// Counts returns the totals since the positions file was made. Call it after Run.
func (f *Forwarder) Counts() Counts { return f.positions.Counts }

// Run sends logs and events until ctx ends. It returns an error if it can't use the positions file at the start, or can't save
// it at the end. Without this file, each restart would send the same lines again.
func (f *Forwarder) Run(ctx context.Context) error {
	f.records = make(chan Record)
	var err error
	if f.positions, err = ReadPositions(f.PositionsFile, nil); errors.Is(err, fs.ErrNotExist) {
		err = f.save()
	} else if err != nil {
		err = fmt.Errorf("cannot read the positions in %q: %w; remove the file to send everything again", f.PositionsFile, err)
	}
	if err != nil {
		return err
	}
	reading, stop := context.WithCancel(ctx)
	defer f.readers.Wait()
	defer stop()
	for ctx.Err() == nil {
		batch := f.collect(reading)
		f.positionsChanged = f.positionsChanged || len(batch) > 0 || !f.positions.OldestUnsent.IsZero()
		f.positions.OldestUnsent = lo.FirstOrEmpty(batch).Time
		f.positions.Counts.Gaps += uint64(lo.CountBy(batch, func(r Record) bool { return r.Kind == KindGap }))
		if len(batch) > 0 && !f.deliver(ctx, batch) {
			break
		}
		for _, r := range batch {
			if r.log != nil {
				r.log.position = r.linePosition
			} else {
				f.positions.Events = r.eventPosition
			}
		}
		if f.positionsChanged && (len(batch) == 0 || time.Since(f.savedAt) > saveInterval) {
			f.trySave()
		}
	}
	if f.positionsChanged {
		return f.save()
	}
	return nil
}

// collect collects records of events and log lines until the batch is full or f.BatchTime is over. After statusInterval, it first
// asks hinit for new logs and events.
func (f *Forwarder) collect(ctx context.Context) (batch []Record) {
	if time.Since(f.statusAskedAt) > statusInterval {
		f.statusAskedAt = time.Now()
		limit, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if st, err := f.Hinit.Status(limit); err == nil && st.Version == client.StatusVersion && f.findLogs(ctx, st) == nil {
			batch = f.readEvents(limit, st.Init.StartedAt)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(f.BatchTime, 250*time.Millisecond))
	defer cancel()
	for size := 0; len(batch) < maxBatchRecords && size < maxBatchBytes; {
		select {
		case r := <-f.records:
			r.Service, r.Profile = r.log.service, r.log.profile
			size += len(r.Text)
			batch = append(batch, r)
		case <-ctx.Done():
			return batch
		}
	}
	return batch
}

// findLogs starts to read new logs of hinit's services, and forgets the logs of removed services.
func (f *Forwarder) findLogs(ctx context.Context, st client.Status) error {
	as, err := f.LogReader(st.Init)
	if err != nil {
		return err
	}
	owners := make(map[string]*client.Service)
	parents := make(map[string]bool)
	for i := range st.Services {
		s := &st.Services[i]
		dir := filepath.Dir(s.Log)
		if owners[dir] = s; !filepath.IsAbs(dir) || slices.Contains(f.ExcludedServices, s.Name) {
			continue
		}
		parents[filepath.Dir(dir)] = true
		if f.positions.Logs[dir] == nil {
			f.positions.Logs[dir] = &logFile{}
		}
	}
	for dir, log := range f.positions.Logs {
		owner := cmp.Or(owners[dir], &client.Service{Name: filepath.Base(dir)})
		log.service, log.profile = owner.Name, owner.Profile
		gone := owners[dir] == nil && !reader.Exists(as, dir)
		switch left := slices.Contains(f.ExcludedServices, log.service); {
		case log.stop != nil && (gone || left):
			log.stop()
			log.stop = nil
		case log.stop == nil && !gone && !left && parents[filepath.Dir(dir)]:
			// The positions file may name any directory, so read only directories beside the log directory of a service.
			r := &logReader{Forwarder: f, logFile: log, log: f.Log.With("dir", dir), position: log.position}
			ctx, stop := context.WithCancel(ctx)
			log.stop = stop
			f.readers.Go(func() { r.read(ctx, dir, as) })
		}
		if gone {
			delete(f.positions.Logs, dir)
			f.positionsChanged = true
		}
	}
	return nil
}

// readEvents returns records of the events after the last sent event. started is the start time of hinit.
func (f *Forwarder) readEvents(ctx context.Context, started time.Time) (batch []Record) {
	at := f.positions.Events
	if !at.InitStartedAt.Equal(started) {
		at = eventPosition{InitStartedAt: started}
	}
	// After an error, the next request reads the remaining events.
	_ = f.Hinit.Events(ctx, client.EventOptions{AfterSeq: at.Seq}, func(e client.Event) error {
		r := eventRecord(e)
		at.Seq = max(at.Seq, e.Seq)
		if e.LostCount > 0 {
			r = gapRecord(fmt.Sprintf("%d events were forgotten before they could be sent", e.LostCount))
		}
		if f.MaskSecrets {
			r.Text = redact.HideText(r.Text)
		}
		r.eventPosition = at
		batch = append(batch, r)
		return nil
	})
	return batch
}

func (f *Forwarder) deliver(ctx context.Context, batch []Record) bool {
	counts := &f.positions.Counts
	for failures := 0; ctx.Err() == nil; {
		limit, cancel := context.WithTimeout(ctx, cmp.Or(f.Timeout, 30*time.Second))
		err := f.Sink(limit, batch)
		cancel()
		refused, some := errors.AsType[RefusedError](err)
		if some && refused.Records == 0 && len(batch) > 1 {
			return f.deliver(ctx, batch[:len(batch)/2]) && f.deliver(ctx, batch[len(batch)/2:])
		}
		left := 0
		switch {
		case some:
			left = min(max(refused.Records, 1), len(batch))
			if time.Since(f.refusalLoggedAt) > time.Second { // A receiver may refuse every record. Positions.Counts has their number.
				f.refusalLoggedAt = time.Now()
				f.Log.Error("the receiver refuses records, which are left out", "records", left, "of", len(batch), "service", batch[0].Service, "error", err)
			}
		case err == nil && failures > 0:
			f.Log.Info("the receiver takes records again")
		}
		if err == nil || some {
			counts.Sent += uint64(len(batch) - left)
			counts.RefusedRecords += uint64(left)
			return true
		}
		counts.Failures++
		if failures++; failures == 1 && ctx.Err() == nil {
			f.Log.Warn("cannot send, trying again", "records", len(batch), "error", err)
			f.trySave() // the metrics read the time of the oldest waiting record from this file
		}
		pause.For(ctx, retryDelays.Delay(failures, rand.Float64()))
	}
	return false
}

// ReadPositions reads a positions file with the identity as; nil means this process.
func ReadPositions(path string, as *fsutil.Actor) (p Positions, err error) {
	text, err := fsutil.WithParentDir(path, as, func(d *fsutil.Dir, name string) ([]byte, error) { return d.ReadFile(name, maxStateSize) })
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	p.Logs = lo.OmitByValues(p.Logs, []*logFile{nil})
	return p, err
}

// trySave saves the positions. After a failure, for instance on a full disk, the forwarder continues to send. A restart would
// not help, and would send the last records again.
func (f *Forwarder) trySave() {
	err := f.save()
	if err != nil && !f.saveFailed {
		f.Log.Error("after a restart, records will be sent again", "error", err)
	}
	f.saveFailed = err != nil
}

// save replaces the positions file atomically.
func (f *Forwarder) save() error {
	text, err := json.Marshal(&f.positions)
	if err == nil {
		_, err = fsutil.WithParentDir(f.PositionsFile, nil, func(d *fsutil.Dir, name string) (any, error) {
			return nil, d.Replace(name, text, fsutil.ReplaceOptions{Mode: 0o600})
		})
	}
	if err != nil {
		return fmt.Errorf("cannot save the positions in %q: %w", f.PositionsFile, err)
	}
	f.savedAt, f.positionsChanged = time.Now(), false
	return nil
}

// position is a position in a log: the line with the time At. Lines that were read together have the same time; Same is the
// number of sent lines with the time At.
type position struct {
	LineTime    time.Time     `json:"at"`
	LinesAtTime int           `json:"same"`
	Masker      redact.Masker `json:"masker,omitzero"` // state of the Masker after the line, which may be inside a private key
}

// logFile is a log with its position.
type logFile struct {
	position
	service, profile string             // name and profile of the service that writes the log
	stop             context.CancelFunc // ends the goroutine that reads the log; nil without a goroutine
}

// logReader reads one log in a goroutine and passes the records to Run.
type logReader struct {
	*Forwarder
	logFile     *logFile
	log         *slog.Logger
	position    position // position after the last line
	hasRead     bool     // whether a line was read since the last call of [reader.Read]
	linesToSkip int      // number of lines to skip, because the receiver already has them
	level       loglevel.Tracker
}

// read reads the log in the directory dir until ctx ends, with the identity as.
func (r *logReader) read(ctx context.Context, dir string, as *fsutil.Actor) {
	defer guard.CatchPanic("reading a log")
	missing := func(why string) error { return r.sendGap(ctx, why) }
	logged := ""
	for ctx.Err() == nil {
		r.hasRead, r.linesToSkip = false, 0
		o := reader.Options{Dir: dir, LastLines: -1, Since: r.position.LineTime, Previous: true, Follow: true, OnMissing: missing}
		err := reader.Read(ctx, as, o, func(line []byte) error { return r.sendLine(ctx, line) })
		if err != nil && ctx.Err() == nil && logged != err.Error() {
			logged = err.Error()
			r.log.Error("cannot read a log", "error", err)
		}
		pause.For(ctx, statusInterval)
	}
}

// send passes a record to Run. It returns an error after the end of ctx.
func (r *logReader) send(ctx context.Context, record Record) error {
	record.log, record.linePosition = r.logFile, r.position
	pause.Send(ctx, r.records, record)
	return ctx.Err()
}

func (r *logReader) sendGap(ctx context.Context, why string) error {
	r.log.Warn("lines are lost", "why", why)
	return r.send(ctx, gapRecord(why))
}

func (r *logReader) sendLine(ctx context.Context, line []byte) error {
	at, message, dated := reader.SplitLine(line)
	level := r.level.OfNextLine(message)
	if !r.hasRead && !r.position.LineTime.IsZero() { // the first line since the saved position
		if at.Equal(r.position.LineTime) {
			r.linesToSkip = r.position.LinesAtTime
		} else if err := r.sendGap(ctx, "files were removed before they could be sent"); err != nil {
			return err
		}
	}
	r.hasRead = true
	later := dated && !at.Equal(r.position.LineTime)
	if r.linesToSkip > 0 && !later { // after a rotation has removed the remaining sent lines, the next line is later
		r.linesToSkip--
		return nil
	}
	r.linesToSkip = 0
	if later {
		r.position.LineTime, r.position.LinesAtTime = at, 0
	}
	r.position.LinesAtTime++
	if r.MaskSecrets {
		message = r.position.Masker.Hide(message, nil)
	}
	return r.send(ctx, Record{Time: cmp.Or(r.position.LineTime, time.Now()), Kind: KindLog, Text: strings.ToValidUTF8(string(message), "\uFFFD"), Level: level})
}
