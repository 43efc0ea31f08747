package profiles

import (
	"context"
	"maps"
	"slices"
	"time"

	"hinit/internal/fsutil"
)

// scanInputs hashes the inputs of each profile for which [Watcher.Interest] was called since the last scanInputs. The inputs are
// config.yaml, .env and the marker.
func (w *Watcher) scanInputs(ctx context.Context) {
	w.mu.Lock()
	names := slices.Collect(maps.Keys(w.interestNew))
	clear(w.interestNew)
	w.mu.Unlock()
	d, err := w.store.open()
	w.warnVolume(err)
	if err != nil {
		w.dirComplete = false // makes the next poll scan everything, including the inputs
		return
	}
	defer d.Close()
	slices.Sort(names)
	for _, name := range names {
		if k := w.known[name]; k != nil && ctx.Err() == nil {
			home, err := homeOf(name)
			if err == nil {
				w.scanInput(d, home, k)
			}
		}
	}
}

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
		w.o.Notify(InputsChanged{Profile: p, Hash: h})
	}
}
