package profiles

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"hinit/internal/fsutil"
)

// maxInput is the size in bytes above which a config.yaml, .env or marker file counts as unreadable. The environment of a process
// can hardly be larger (execve(2)).
const maxInput = 1 << 20

// Hash stands for the content of the files that a gateway reads when it starts. "" means that the content is unknown.
type Hash string

// InputsHash returns a hash of config.yaml, .env and the marker of a profile. It changes when one of them changes, appears or
// disappears. A file that can't be read (too large, a symbolic link) counts with its metadata only. An error means that the name or
// the volume can't be used; then the hash is "".
func (s *Store) InputsHash(profile string) (Hash, error) {
	return fromHome(s, profile, func(d *fsutil.Dir, home string) (Hash, error) { return s.inputsHash(d, home), nil })
}

// clockTick is how far the timestamp of a file may lag behind the clock: the kernel takes the time of its last tick. On volumes
// that store whole seconds, the lag is longer.
const clockTick = 20 * time.Millisecond

// InputsChangedSince reports whether a file that InputsHash reads was modified after t, a time by the clock of the volume. A
// modification up to clockTick before t also counts, because file timestamps are coarse. A file that can't be examined counts as
// unchanged.
func (s *Store) InputsChangedSince(profile string, t time.Time) bool {
	changed, _ := fromHome(s, profile, func(d *fsutil.Dir, home string) (bool, error) {
		stamps := s.inputStamps(d, home)
		return slices.ContainsFunc(stamps[:], func(st stamp) bool { return st.mtime.After(t.Add(-clockTick)) }), nil
	})
	return changed
}

// inputs returns the names of the files that InputsHash reads.
func (s *Store) inputs() [3]string { return [...]string{configFile, envFile, s.marker} }

// inputStamps returns the metadata (see stamp) of each file that inputsHash reads.
func (s *Store) inputStamps(d *fsutil.Dir, home string) (stamps [3]stamp) {
	for i, name := range s.inputs() {
		stamps[i] = stampAt(d, filepath.Join(home, name))
	}
	return stamps
}

// inputsHash hashes the input files of the profile whose home is the directory home in d. See [Store.InputsHash] for unreadable
// files.
func (s *Store) inputsHash(d *fsutil.Dir, home string) Hash {
	sum := sha256.New()
	for _, name := range s.inputs() {
		rel := filepath.Join(home, name)
		data, err := d.ReadFile(rel, maxInput)
		switch {
		case err == nil:
			fmt.Fprintf(sum, "%s: %d bytes\n", name, len(data))
			sum.Write(data)
		case errors.Is(err, fs.ErrNotExist):
			fmt.Fprintf(sum, "%s: missing\n", name)
		default:
			fmt.Fprintf(sum, "%s: %v\n", name, stampAt(d, rel))
		}
	}
	return Hash(hex.EncodeToString(sum.Sum(nil)[:16]))
}

// scanInputs hashes the inputs (config.yaml, .env, marker) of each profile for which [Watcher.Interest] was called since the last
// scanInputs.
func (w *Watcher) scanInputs(ctx context.Context) {
	w.mu.Lock()
	names := slices.Sorted(maps.Keys(w.interestNew))
	clear(w.interestNew)
	w.mu.Unlock()
	d, err := w.store.open()
	w.warnVolume(err)
	if err != nil {
		w.dir = stamp{} // makes the next poll scan everything, including the inputs
		return
	}
	defer d.Close()
	for _, name := range names {
		if k := w.known[name]; k != nil && ctx.Err() == nil {
			w.scanInput(d, knownHome(name), k)
		}
	}
}

// scanInput hashes the inputs of one profile, and reports InputsChanged if Interest was called with another hash.
func (w *Watcher) scanInput(d *fsutil.Dir, home string, k *scanned) {
	p := k.profile
	since, ok := w.interested(p.Name)
	if !ok || homeExists(d, home) != nil { // ignore changes during the removal of a profile
		return
	}
	var h Hash
	began := time.Now()
	_ = d.WithIdentity(func(d *fsutil.Dir) error {
		k.inputs = w.store.inputStamps(d, home)
		k.inputsSure = !slices.ContainsFunc(k.inputs[:], func(s stamp) bool { return !s.settledBefore(began) })
		h = w.store.inputsHash(d, home)
		return nil
	})
	for _, input := range k.inputs {
		k.nextScan = k.nextScan.Add(time.Duration(min(input.size, maxInput)) * time.Second / hashedBytesPerSecond)
	}
	if h == since {
		return
	}
	w.mu.Lock()
	if now, ok := w.interest[p.Name]; !ok || now != since { // a newer call of Interest causes another scan
		w.mu.Unlock()
		return
	}
	w.interest[p.Name] = h
	w.mu.Unlock()
	if since != "" {
		w.options.Notify(InputsChanged{Profile: p, Hash: h})
	}
}
