package profiles

import (
	"context"
	"maps"
	"slices"
	"time"

	"hinit/internal/fsutil"
)

// lookAtInputs looks at the inputs of every profile that somebody has become interested in.
func (w *Watcher) lookAtInputs(ctx context.Context) {
	w.mu.Lock()
	names := slices.Collect(maps.Keys(w.interestNew))
	clear(w.interestNew)
	w.mu.Unlock()
	d, err := w.store.open()
	w.warnVolume(err)
	if err != nil {
		w.sure = false // so that the next poll does it
		return
	}
	defer d.Close()
	slices.Sort(names)
	for _, name := range names {
		if k := w.known[name]; k != nil && ctx.Err() == nil {
			home, err := homeOf(name)
			if err == nil {
				w.lookAtInput(d, home, k)
			}
		}
	}
}

func (w *Watcher) lookAtInput(d *fsutil.Dir, home string, k *lookedAt) {
	p := k.profile
	since, ok := w.interested(p.Name)
	if !ok || homeExists(d, home) != nil { // one that is going away has no news
		return
	}
	var h Hash
	began := time.Now()
	_ = d.Together(func(d *fsutil.Dir) error {
		k.inputs = w.store.inputStamps(d, home)
		k.inputsSure = !slices.ContainsFunc(k.inputs[:], func(s stamp) bool { return !s.before(began) })
		h = w.store.inputsHash(d, home)
		return nil
	})
	if h == since {
		return
	}
	w.mu.Lock()
	if now, ok := w.interest[p.Name]; !ok || now != since { // asked anew meanwhile: that has its own look
		w.mu.Unlock()
		return
	}
	w.interest[p.Name] = h
	w.mu.Unlock()
	if since != "" {
		w.o.Notify(InputsChanged{Profile: p, Hash: h})
	}
}
