package supervisor

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"
)

const (
	ringSize = 1024 // records of all services together
	ownSize  = 8    // older records that each service keeps besides
	mostOwn  = 512  // services that keep some

	rootOrders = "\x00" // has a place beside the services, for what was done by root's order
	rootSize   = 64     // older records that it keeps
)

// Ring is the history of the container: the loop appends, readers follow with a cursor of their own. Nothing blocks: a slow reader
// loses its oldest records and learns how many. A service that makes many records takes away the older ones of the others, but the last
// few of each, and the last orders of root, see [Ring.Kept].
type Ring struct {
	slots [ringSize]atomic.Pointer[Record]
	own   atomic.Pointer[map[string]*ownRecords] // what slots held before; a new map for each new service
	last  uint64                                 // Seq of the newest record, 0 when there is none; the loop's
	head  atomic.Uint64                          // the same of those that readers see
	news  broadcast
}

// add appends a record and numbers it. Readers see it after the next show. Only the loop may call it.
func (r *Ring) add(rec Record) {
	r.last++
	rec.Seq = r.last
	r.put(&rec)
}

// ownRecords are the last records of a service, or of root's orders, that the ring has overwritten.
type ownRecords struct {
	slots []atomic.Pointer[Record]
	next  int // the loop's
}

// put stores a record, and keeps the one before it in its slot for its service, or among the orders of root. Notices are not kept:
// anybody can post any number.
func (r *Ring) put(rec *Record) {
	old := r.slots[rec.Seq%ringSize].Swap(rec)
	if old == nil || old.Key != "" {
		return
	}
	key, size := old.Service, ownSize
	if old.By != nil && old.By.UID == 0 {
		key, size = rootOrders, rootSize
	}
	var services map[string]*ownRecords
	if p := r.own.Load(); p != nil {
		services = *p
	}
	if old.Dropped && services[old.Service] != nil {
		services = maps.Clone(services)
		delete(services, old.Service)
		r.own.Store(&services)
	}
	own := services[key]
	switch {
	case key != rootOrders && (old.Dropped || own == nil && len(services) >= mostOwn):
		return
	case own == nil:
		own = &ownRecords{slots: make([]atomic.Pointer[Record], size)}
		services = maps.Clone(services)
		if services == nil {
			services = make(map[string]*ownRecords)
		}
		services[key] = own
		r.own.Store(&services)
	}
	own.slots[own.next].Store(old)
	own.next = (own.next + 1) % size
}

// Kept returns the overwritten records that the ring still keeps, with numbers below end, oldest first. These are the last ones
// of each service, of the container, and of root's orders. It may be called from any goroutine and does not block.
func (r *Ring) Kept(end uint64) (records []Record) {
	for _, rec := range r.Older(0, end) {
		records = append(records, *rec)
	}
	return records
}

// Older returns the same without copies, and only those after another one.
func (r *Ring) Older(after, end uint64) (records []*Record) {
	if services := r.own.Load(); services != nil {
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

// show makes readers see what was added, once the snapshot shows it too. Only the loop may call it.
func (r *Ring) show() {
	if r.head.Load() != r.last {
		r.head.Store(r.last)
		r.news.wake()
	}
}

// Since returns the records after cursor, oldest first, and how many after it are overwritten. The Seq of the last one is the next
// cursor; 0 is before the first. It may be called from any goroutine and does not block.
func (r *Ring) Since(cursor uint64) (records []Record, lost uint64) {
	head := r.head.Load()
	if head > ringSize && cursor < head-ringSize {
		lost = head - ringSize - cursor
		cursor = head - ringSize
	}
	for seq := cursor + 1; seq <= head; seq++ {
		rec := r.slots[seq%ringSize].Load()
		if rec.Seq != seq { // overwritten while we read: everything before it is lost too
			lost += uint64(len(records)) + 1
			records = records[:0]
			continue
		}
		records = append(records, *rec)
	}
	return records, lost
}

// Last returns the Seq of the newest record.
func (r *Ring) Last() uint64 { return r.head.Load() }

// News returns a channel that is closed at the next append. Take it before looking with Since, so that nothing is missed.
func (r *Ring) News() <-chan struct{} { return r.news.wait() }

// broadcast wakes any number of waiters once. It has no lock, and costs nothing without a waiter.
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
