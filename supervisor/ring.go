package supervisor

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"
)

const (
	ringSize        = 1024 // number of records in the ring, for all services together
	keptSize        = 8    // number of overwritten records that are kept for each service
	maxKeptServices = 512  // number of services for which overwritten records are kept

	rootOrders     = "\x00" // key in Ring.kept for the orders that root has given; no service has this name
	keptRootOrders = 64     // number of overwritten records of root's orders that are kept
)

// Ring is the event history. The loop appends records, and each reader follows with its own cursor. No method blocks: a slow
// reader loses the oldest records, but learns how many. One busy service could overwrite the records of all other services. So
// the ring also keeps, for longer, the last few records of each service and the last orders of root, see [Ring.KeptRecords].
type Ring struct {
	slots [ringSize]atomic.Pointer[Record]
	kept  atomic.Pointer[map[string]*keptRecords] // overwritten records by service; the map is replaced, not modified
	last  uint64                                  // Seq of the newest record, 0 for none; used by the loop only
	head  atomic.Uint64                           // Seq of the newest record that readers see
	news  broadcast
}

// add gives a record the next number and appends it. Readers see the record after the next publish. Only the loop may call add.
func (r *Ring) add(rec Record) {
	r.last++
	rec.Seq = r.last
	r.store(&rec)
}

// keptRecords is a small ring of overwritten records, of one service or of root's orders.
type keptRecords struct {
	slots []atomic.Pointer[Record]
	next  int // index to write next; used by the loop only
}

// store puts a record into the ring. The record that it overwrites is kept for its service, or among root's orders. Overwritten
// notices are not kept, because clients can post any number of them.
func (r *Ring) store(rec *Record) {
	old := r.slots[rec.Seq%ringSize].Swap(rec)
	if old == nil || old.Key != "" {
		return
	}
	key, size := old.Service, keptSize
	if old.By != nil && old.By.UID == 0 {
		key, size = rootOrders, keptRootOrders
	}
	var services map[string]*keptRecords
	if p := r.kept.Load(); p != nil {
		services = *p
	}
	if old.Dropped && services[old.Service] != nil {
		services = maps.Clone(services)
		delete(services, old.Service)
		r.kept.Store(&services)
	}
	own := services[key]
	switch {
	case key != rootOrders && (old.Dropped || own == nil && len(services) >= maxKeptServices):
		return
	case own == nil:
		own = &keptRecords{slots: make([]atomic.Pointer[Record], size)}
		grown := make(map[string]*keptRecords)
		maps.Copy(grown, services)
		grown[key] = own
		r.kept.Store(&grown)
	}
	own.slots[own.next].Store(old)
	own.next = (own.next + 1) % size
}

// KeptRecords returns older records with a Seq below end, oldest first. The ring itself no longer contains them. They are the
// last overwritten records of each service, of the container, and of root's orders. KeptRecords may be called from any goroutine
// and does not block.
func (r *Ring) KeptRecords(end uint64) (records []Record) {
	for _, rec := range r.KeptBetween(0, end) {
		records = append(records, *rec)
	}
	return records
}

// KeptBetween works like KeptRecords, but returns only the records with a Seq above the parameter after, and doesn't copy them.
func (r *Ring) KeptBetween(after, end uint64) (records []*Record) {
	if services := r.kept.Load(); services != nil {
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

// publish makes the added records visible to readers. Only the loop may call it, after it has published the snapshot.
func (r *Ring) publish() {
	if r.head.Load() != r.last {
		r.head.Store(r.last)
		r.news.wake()
	}
}

// Since returns the records after cursor, oldest first. The result lost is the number of records after cursor that were
// overwritten before the caller could read them. A cursor is the Seq of the last record that was read, or 0 to begin. Since may
// be called from any goroutine and does not block.
func (r *Ring) Since(cursor uint64) (records []Record, lost uint64) {
	head := r.head.Load()
	if head > ringSize && cursor < head-ringSize {
		lost = head - ringSize - cursor
		cursor = head - ringSize
	}
	for seq := cursor + 1; seq <= head; seq++ {
		rec := r.slots[seq%ringSize].Load()
		if rec.Seq != seq { // overwritten while this loop ran, so all earlier records are also lost
			lost += uint64(len(records)) + 1
			records = records[:0]
			continue
		}
		records = append(records, *rec)
	}
	return records, lost
}

// Last returns the Seq of the newest record that readers see.
func (r *Ring) Last() uint64 { return r.head.Load() }

// News returns a channel that is closed at the next publish. Call News before Since, or records published between the two calls
// are missed.
func (r *Ring) News() <-chan struct{} { return r.news.wait() }

// broadcast wakes all waiting goroutines once. It has no lock and costs nothing if no goroutine waits.
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
