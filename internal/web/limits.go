package web

import (
	"net"
	"net/http"
	"net/netip"
	"sync"

	"golang.org/x/time/rate"
)

// owner is the key of all requests with the token or over the Unix socket. Requests of others do not reduce its limits.
const owner = "owner"

// remote returns the key under which the requests of one reader count.
func remote(r *http.Request) string {
	if bySocket(r) {
		return owner
	}
	return remoteOf(r.RemoteAddr)
}

// remoteOf returns the key of an address. All loopback addresses of this machine count as one reader, and so does an IPv6 network of
// one customer (/64).
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

// limiter limits the requests a second of each key, with a burst. It stores a bounded number of keys.
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

// allow reports whether the key may make another request now, and counts it.
func (l *limiter) allow(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.buckets[key]
	if b == nil {
		if len(l.buckets) >= mostBuckets {
			clear(l.buckets) // many addresses at once can gain one burst each
		}
		b = rate.NewLimiter(l.rate, l.burst)
		l.buckets[key] = b
	}
	return b.Allow()
}

// places limits the open connections: in total, and each key to half of the total. The owner has its own places.
type places struct {
	most int

	mu    sync.Mutex
	taken int // without the owner's
	by    map[string]int
}

func newPlaces(most int) *places { return &places{most: most, by: make(map[string]int)} }

// take reserves a place for a key, and reports whether there was one. [places.leave] releases it.
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
