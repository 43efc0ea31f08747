package web

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	sessionCookie = "hinit_session"
	sessionTime   = 12 * time.Hour
)

// sign returns the HMAC-SHA256 signature of text in hexadecimal digits.
func sign(key []byte, text string) string {
	mac := hmac.New(sha256.New, key)
	_, _ = mac.Write([]byte(text))
	return hex.EncodeToString(mac.Sum(nil))
}

func equalInConstantTime(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

func isUnixSocket(r *http.Request) bool {
	local, known := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return known && local.Network() == "unix"
}

// bearerTokenOf returns the token in the Authorization header of a request. is reports whether the header has one.
func bearerTokenOf(r *http.Request) (given string, is bool) {
	return strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
}

// hasToken reports whether a request has the token, or the cookie of a session that began with the token. It doesn't block
// after wrong tokens: many wrong guesses of other clients must not lock out the right token.
func (s *Server) hasToken(r *http.Request) bool {
	if s.Token == "" {
		return false
	}
	if given, is := bearerTokenOf(r); is {
		return equalInConstantTime(given, s.Token)
	}
	c, err := r.Cookie(sessionCookie)
	if err != nil {
		return false
	}
	until, mac, _ := strings.Cut(c.Value, ".")
	end, err := strconv.ParseInt(until, 10, 64)
	return err == nil && time.Now().Unix() < end && equalInConstantTime(mac, sign(s.sessionKey, until))
}

// limitKey returns the key for the rate limits of a request: [ownerLimitKey] if the request may change something, and otherwise
// the address of the client.
func (s *Server) limitKey(r *http.Request) string {
	if s.mayControl(r) {
		return ownerLimitKey
	}
	return limitKeyWithoutToken(r)
}

// mayControl reports whether a request may change something: it has the token or came over a Unix socket.
func (s *Server) mayControl(r *http.Request) bool { return isUnixSocket(r) || s.hasToken(r) }

// mayRead reports whether a request may read the pages. Without a configured token, every request may.
func (s *Server) mayRead(r *http.Request) bool { return s.Token == "" || s.mayControl(r) }

// isSecure reports whether the browser uses TLS, which a proxy in front of this server decrypts.
func isSecure(r *http.Request) bool { return r.Header.Get("X-Forwarded-Proto") == "https" }

func (s *Server) setSession(w http.ResponseWriter, r *http.Request, value string, age int) {
	http.SetCookie(w, &http.Cookie{
		Name: sessionCookie, Value: value, Path: s.Base + "/", MaxAge: age, HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: isSecure(r),
	})
}

// isSameSiteForm reports whether a form comes from a page of this server. It examines headers that only a browser can set. It
// refuses a request without these headers, because an old browser sends such requests for pages of other sites, too.
func isSameSiteForm(r *http.Request) bool {
	site, origin := r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Origin")
	if site == "" && (origin == "" || isSecure(r) && !strings.HasPrefix(origin, "https:")) {
		return false
	}
	return new(http.CrossOriginProtection).Check(r) == nil
}

// isKnownHost reports whether the host name in a request is configured, or is a name of this machine. A page that is open to the
// network also accepts any IP address. The check prevents DNS rebinding: another site's name could resolve to a loopback
// address, and its page would then have the same origin as this page.
func (s *Server) isKnownHost(r *http.Request) bool {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.ToLower(strings.Trim(host, "[]")), ".")
	if host == "localhost" || slices.ContainsFunc(s.AllowedHosts, func(name string) bool { return strings.EqualFold(strings.TrimSuffix(name, "."), host) }) {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && (ip.IsLoopback() || s.Open)
}

// login shows the page with the form for the token. A form with the right token begins a session.
func (s *Server) login(w http.ResponseWriter, r *http.Request) {
	switch {
	case s.Token == "":
		s.showError(w, r, http.StatusNotFound, "There is no token to log in with.")
	case r.Method != http.MethodPost:
		s.showPage(w, r, http.StatusOK, "login", "Log in", "")
	case !isSameSiteForm(r):
		s.showPage(w, r, http.StatusForbidden, "login", "Log in", "The form is not of this page; load it again and repeat it.")
	case equalInConstantTime(r.PostFormValue("token"), s.Token):
		until := strconv.FormatInt(time.Now().Add(sessionTime).Unix(), 10)
		s.setSession(w, r, until+"."+sign(s.sessionKey, until), int(sessionTime/time.Second))
		http.Redirect(w, r, s.Base+"/", http.StatusSeeOther)
	case !s.guesses.allowRequest(limitKeyWithoutToken(r)):
		w.Header().Set("Retry-After", "60")
		s.showPage(w, r, http.StatusTooManyRequests, "login", "Log in", "Too many wrong tokens from this address. Wait a minute, or enter the right one.")
	default:
		s.Log.Warn("wrong token", "remote", limitKeyWithoutToken(r))
		s.showPage(w, r, http.StatusForbidden, "login", "Log in", "That is not the token.")
	}
}

func (s *Server) logout(w http.ResponseWriter, r *http.Request) {
	if isSameSiteForm(r) {
		s.setSession(w, r, "", -1)
	}
	http.Redirect(w, r, s.Base+"/", http.StatusSeeOther)
}

// ownerLimitKey is the rate limit key of all requests with the token or over the Unix socket. Other clients have other keys, so
// they can't use up the owner's limits.
const ownerLimitKey = "owner"

// limitKeyWithoutToken returns [ownerLimitKey] for a Unix socket, and otherwise the address of the client. Unlike
// [Server.limitKey], it ignores the token.
func limitKeyWithoutToken(r *http.Request) string {
	if isUnixSocket(r) {
		return ownerLimitKey
	}
	return addressKey(r.RemoteAddr)
}

// addressKey returns the rate limit key of an address. All loopback addresses share one key. The IPv6 addresses of a /64
// network share one key too, because the network usually belongs to one customer.
func addressKey(address string) string {
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

// limiter limits the rate of requests for each key, and allows short bursts. It stores at most [maxBuckets] keys.
type limiter struct {
	rate  rate.Limit
	burst int

	mu      sync.Mutex
	buckets map[string]*rate.Limiter
}

const maxBuckets = 4096

func newLimiter(each rate.Limit, burst int) *limiter {
	return &limiter{rate: each, burst: burst, buckets: make(map[string]*rate.Limiter)}
}

// allowRequest counts a request for a key, and reports whether it is within the limit.
func (l *limiter) allowRequest(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.buckets[key]
	if b == nil {
		if len(l.buckets) >= maxBuckets {
			clear(l.buckets) // forget all keys, so that each key gets a new burst
		}
		b = rate.NewLimiter(l.rate, l.burst)
		l.buckets[key] = b
	}
	return b.Allow()
}

// connectionLimit limits open connections, or other work for clients, in total and for each key. A key gets at most half of the
// total. Connections of the owner don't count.
type connectionLimit struct {
	limit int

	mu    sync.Mutex
	open  int // number of open connections
	byKey map[string]int
}

func newConnectionLimit(limit int) *connectionLimit {
	return &connectionLimit{limit: limit, byKey: make(map[string]int)}
}

// acquire counts a new connection for a key. It returns false above the limits. Call [connectionLimit.release] when the
// connection is closed.
func (p *connectionLimit) acquire(key string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byKey[key] >= max(p.limit/2, 1) || key != ownerLimitKey && p.open-p.byKey[ownerLimitKey] >= p.limit {
		return false
	}
	p.byKey[key]++
	p.open++
	return true
}

func (p *connectionLimit) release(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open--
	if p.byKey[key]--; p.byKey[key] == 0 {
		delete(p.byKey, key)
	}
}
