package supervisor

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"
)

const (
	ringSize              = 1024 // number of records in the ring, for all services together
	overwrittenPerService = 8    // number of overwritten records that are kept for each service
	maxKeptServices       = 512  // overwritten records are kept for at most this many services

	rootCommandsKey = "\x00" // key in Ring.overwritten for records of commands by root; no service can have this name
	maxRootCommands = 64     // number of overwritten records of commands by root that are kept
)

// Ring is the event history. The loop appends records, and each reader follows with its own cursor. No method blocks: a slow
// reader loses the oldest records, and learns how many. A busy service can overwrite the records of all others, so the ring
// also keeps a few overwritten records of each service and of root's commands, see [Ring.KeptRecords].
type Ring struct {
	slots       [ringSize]atomic.Pointer[Record]
	overwritten atomic.Pointer[map[string]*overwrittenRecords] // overwritten records by service; adding a service replaces the map
	last        uint64
	published   atomic.Uint64 // Seq of the newest record that readers see
	changes     broadcast
}

// add appends a record and gives it the next number. Readers see it after the next publish. Only the loop may call add.
func (r *Ring) add(rec Record) {
	r.last++
	rec.Seq = r.last
	r.store(&rec)
}

// overwrittenRecords is a small ring of overwritten records about one service, or about root's commands.
type overwrittenRecords struct {
	slots    []atomic.Pointer[Record]
	nextSlot int
}

// store puts a record into the ring. It moves the overwritten record to the kept records of its service or of root's commands.
// Notices are not kept, because clients can post any number of them.
func (r *Ring) store(rec *Record) {
	old := r.slots[rec.Seq%ringSize].Swap(rec)
	if old == nil || old.Key != "" {
		return
	}
	key, size := old.Service, overwrittenPerService
	if old.By != nil && old.By.UID == 0 {
		key, size = rootCommandsKey, maxRootCommands
	}
	var services map[string]*overwrittenRecords
	if p := r.overwritten.Load(); p != nil {
		services = *p
	}
	if old.Dropped && services[old.Service] != nil {
		services = maps.Clone(services)
		delete(services, old.Service)
		r.overwritten.Store(&services)
	}
	own := services[key]
	switch {
	case key != rootCommandsKey && (old.Dropped || own == nil && len(services) >= maxKeptServices):
		return
	case own == nil:
		own = &overwrittenRecords{slots: make([]atomic.Pointer[Record], size)}
		grown := make(map[string]*overwrittenRecords)
		maps.Copy(grown, services)
		grown[key] = own
		r.overwritten.Store(&grown)
	}
	own.slots[own.nextSlot].Store(old)
	own.nextSlot = (own.nextSlot + 1) % size
}

// KeptRecords returns the kept records that the ring itself no longer contains, with a Seq below end, oldest first. These are
// the last records of each service, of the container, and of root's commands. Any goroutine may call KeptRecords. It does not
// block.
func (r *Ring) KeptRecords(end uint64) (records []Record) {
	for _, rec := range r.KeptBetween(0, end) {
		records = append(records, *rec)
	}
	return records
}

// KeptBetween is KeptRecords without copying, limited to records with a Seq above after. The caller must not modify them.
func (r *Ring) KeptBetween(after, end uint64) (records []*Record) {
	if services := r.overwritten.Load(); services != nil {
		for _, own := range *services {
			for i := range own.slots {
				if rec := own.slots[i].Load(); rec != nil && rec.Seq > after && rec.Seq < end {
					records = append(records, rec)
				}
			}
		}
	}
	slices.SortFunc(records, func(a, b *Record) int { return cmp.Compare(a.Seq, b.Seq) })
	return records
}

// publish shows the added records to readers. The loop calls it after publishing the snapshot, so that a reader of a record
// also sees its effect.
func (r *Ring) publish() {
	if r.published.Load() != r.last {
		r.published.Store(r.last)
		r.changes.wake()
	}
}

// Since returns the records after a cursor, oldest first, and how many of them were overwritten before the call. A cursor is
// the Seq of the last record that the reader has seen, or 0 for the beginning. Any goroutine may call Since. It does not
// block.
func (r *Ring) Since(cursor uint64) (records []Record, lost uint64) {
	head := r.published.Load()
	if head > ringSize && cursor < head-ringSize {
		lost = head - ringSize - cursor
		cursor = head - ringSize
	}
	for seq := cursor + 1; seq <= head; seq++ {
		rec := r.slots[seq%ringSize].Load()
		if rec.Seq != seq { // the loop has overwritten this slot and all earlier slots since the check
			lost += uint64(len(records)) + 1
			records = records[:0]
			continue
		}
		records = append(records, *rec)
	}
	return records, lost
}

// Last returns the Seq of the newest record that readers see.
func (r *Ring) Last() uint64 { return r.published.Load() }

// Changed returns a channel that is closed at the next publish. Call it before Since. Otherwise records that are published
// between the two calls wake no reader.
func (r *Ring) Changed() <-chan struct{} { return r.changes.wait() }

// broadcast wakes all goroutines that wait on its channel. It has no lock. If no goroutine waits, its method wake costs nothing.
type broadcast struct{ ch atomic.Pointer[chan struct{}] }

func (b *broadcast) wait() <-chan struct{} {
	for {
		if ch := b.ch.Load(); ch != nil {
			return *ch
		}
		ch := make(chan struct{})
		if b.ch.CompareAndSwap(nil, &ch) {
			return ch
		}
	}
}

func (b *broadcast) wake() {
	if ch := b.ch.Swap(nil); ch != nil {
		close(*ch)
	}
}
