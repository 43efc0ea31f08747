package web

import (
	"net"
	"net/http"
	"net/netip"
	"sync"

	"golang.org/x/time/rate"
)

// owner is the key of a request that has the token or came by the Unix socket. Nothing that others do uses up what it may have.
const owner = "owner"

// remote is the key under which the requests of one reader count together.
func remote(r *http.Request) string {
	if bySocket(r) {
		return owner
	}
	return remoteOf(r.RemoteAddr)
}

// remoteOf is the key of an address. This machine is one reader, although it has many loopback addresses, and so is an IPv6
// network of a single customer (/64).
func remoteOf(address string) string {
	host, _, _ := net.SplitHostPort(address)
	ip, err := netip.ParseAddr(host)
	ip = ip.Unmap().WithZone("")
	switch {
	case err != nil:
		return host
	case ip.IsLoopback():
		return "loopback"
	case ip.Is6():
		if net, err := ip.Prefix(64); err == nil {
			return net.String()
		}
	}
	return ip.String()
}

// limiter allows each key so many requests a second, and a burst. It remembers a bounded number of keys.
type limiter struct {
	rate  rate.Limit
	burst int

	mu      sync.Mutex
	buckets map[string]*rate.Limiter
}

const mostBuckets = 4096

func newLimiter(each rate.Limit, burst int) *limiter {
	return &limiter{rate: each, burst: burst, buckets: make(map[string]*rate.Limiter)}
}

// allow takes one from the key's bucket, and says whether there was one.
func (l *limiter) allow(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.buckets[key]
	if b == nil {
		if len(l.buckets) >= mostBuckets {
			clear(l.buckets) // a flood of addresses gains a burst each
		}
		b = rate.NewLimiter(l.rate, l.burst)
		l.buckets[key] = b
	}
	return b.Allow()
}

// places bounds the open connections: all together, and each key to the half of that. The owner has places of its own.
type places struct {
	most int

	mu    sync.Mutex
	taken int // by others than the owner
	by    map[string]int
}

func newPlaces(most int) *places { return &places{most: most, by: make(map[string]int)} }

// take takes a place for a key, and says whether there was one. [places.leave] gives it back.
func (p *places) take(key string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.by[key] >= max(p.most/2, 1) || key != owner && p.taken >= p.most {
		return false
	}
	p.by[key]++
	if key != owner {
		p.taken++
	}
	return true
}

func (p *places) leave(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.by[key]--; p.by[key] == 0 {
		delete(p.by, key)
	}
	if key != owner {
		p.taken--
	}
}
