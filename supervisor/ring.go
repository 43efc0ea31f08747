package supervisor

import "sync/atomic"

// ringSize is how many records the history keeps.
const ringSize = 1024

// Ring is the history of the container: the loop appends, readers follow with a cursor of their own. Nothing blocks: a slow reader
// loses its oldest records and learns how many.
type Ring struct {
	slots [ringSize]atomic.Pointer[Record]
	last  uint64        // Seq of the newest record, 0 when there is none; the loop's
	head  atomic.Uint64 // the same of those that readers see
	news  broadcast
}

// add appends a record and numbers it. Readers see it after the next show. Only the loop may call it.
func (r *Ring) add(rec Record) {
	r.last++
	rec.Seq = r.last
	r.slots[rec.Seq%ringSize].Store(&rec)
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

// broadcast wakes any number of waiters once, without a lock and at no cost while nobody waits.
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
