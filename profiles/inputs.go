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

// maxInputSize is the size in bytes above which config.yaml, .env and the marker file count as unreadable. The environment of a
// process can hardly be larger (execve(2)).
const maxInputSize = 1 << 20

// InputHash identifies the content of the files that a gateway reads when it starts. "" means that the content is unknown.
type InputHash string

// InputsHash returns a hash of config.yaml, .env and the marker of a profile. The hash changes when one of them changes, appears
// or disappears. Of a file that can't be read (too large, a symbolic link), only the metadata is used. An error means that the
// name or the volume can't be used; then the hash is "".
func (s *Store) InputsHash(profile string) (InputHash, error) {
	return readHome(s, profile, func(d *fsutil.Dir, home string) (InputHash, error) { return s.inputsHash(d, home), nil })
}

// timestampLag is how far the timestamp of a file may lag behind the clock, because the kernel uses the time of its last tick. On
// a volume that stores whole seconds, the lag is longer.
const timestampLag = 20 * time.Millisecond

// InputsChangedSince reports whether a file that InputsHash reads was modified after t, by the clock of the volume. Because
// timestamps are coarse, a modification up to timestampLag before t also counts. A file that can't be examined counts as
// unchanged.
func (s *Store) InputsChangedSince(profile string, t time.Time) bool {
	changed, _ := readHome(s, profile, func(d *fsutil.Dir, home string) (bool, error) {
		stamps := s.inputStamps(d, home)
		return slices.ContainsFunc(stamps[:], func(st stamp) bool { return st.mtime.After(t.Add(-timestampLag)) }), nil
	})
	return changed
}

// inputFiles returns the names of the files that InputsHash reads.
func (s *Store) inputFiles() [3]string { return [...]string{configFile, envFile, s.marker} }

// inputStamps returns the metadata (see stamp) of each file that inputsHash reads.
func (s *Store) inputStamps(d *fsutil.Dir, home string) (stamps [3]stamp) {
	for i, name := range s.inputFiles() {
		stamps[i] = stampAt(d, filepath.Join(home, name))
	}
	return stamps
}

// inputsHash hashes the input files of a profile. home is the profile's home, relative to d. See [Store.InputsHash] for
// unreadable files.
func (s *Store) inputsHash(d *fsutil.Dir, home string) InputHash {
	sum := sha256.New()
	for _, name := range s.inputFiles() {
		rel := filepath.Join(home, name)
		data, err := d.ReadFile(rel, maxInputSize)
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
	return InputHash(hex.EncodeToString(sum.Sum(nil)[:16]))
}

// scanInputs hashes the inputs (config.yaml, .env, marker) of each profile for which [Watcher.WatchInputs] was called since the last
// scanInputs.
func (w *Watcher) scanInputs(ctx context.Context) {
	w.mu.Lock()
	names := slices.Sorted(maps.Keys(w.newInputWatches))
	clear(w.newInputWatches)
	w.mu.Unlock()
	d, err := w.store.open()
	w.warnVolume(err)
	if err != nil {
		w.dir = stamp{} // A zero stamp makes the next poll scan everything, with the inputs.
		return
	}
	defer d.Close()
	for _, name := range names {
		if k := w.known[name]; k != nil && ctx.Err() == nil {
			w.scanInput(d, homeOfValidName(name), k)
		}
	}
}

// scanInput hashes the inputs of one profile. If the hash differs from the one that was passed to WatchInputs, it reports
// InputsChanged.
func (w *Watcher) scanInput(d *fsutil.Dir, home string, k *scannedProfile) {
	p := k.profile
	since, ok := w.watchedInputs(p.Name)
	if !ok || homeExists(d, home) != nil { // Ignore the changes of a profile that is being removed.
		return
	}
	var h InputHash
	began := time.Now()
	_ = d.WithIdentity(func(d *fsutil.Dir) error {
		k.inputs = w.store.inputStamps(d, home)
		k.inputsCurrent = !slices.ContainsFunc(k.inputs[:], func(s stamp) bool { return !s.settledBefore(began) })
		h = w.store.inputsHash(d, home)
		return nil
	})
	for _, input := range k.inputs {
		k.nextScan = k.nextScan.Add(time.Duration(min(input.size, maxInputSize)) * time.Second / hashedBytesPerSecond)
	}
	if h == since {
		return
	}
	w.mu.Lock()
	if now, ok := w.inputHashes[p.Name]; !ok || now != since { // A newer call of WatchInputs leads to another scan.
		w.mu.Unlock()
		return
	}
	w.inputHashes[p.Name] = h
	w.mu.Unlock()
	if since != "" {
		w.options.Notify(InputsChanged{Profile: p, Hash: h})
	}
}
