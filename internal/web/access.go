package web

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	sessionCookie = "hinit_session"
	pageCookie    = "hinit_page" // what the secret of a form is bound to
	sessionTime   = 12 * time.Hour
)

// keys are what cookies and forms are signed with. The session's is made of the token, so that a session lives as long as the token.
type keys struct{ session, page []byte }

func newKeys(token string) keys {
	page := make([]byte, 32)
	_, _ = rand.Read(page) // it never fails
	return keys{session: sign([]byte(token), "hinit session"), page: page}
}

func sign(key []byte, text string) []byte {
	mac := hmac.New(sha256.New, key)
	_, _ = mac.Write([]byte(text))
	return mac.Sum(nil)
}

func same(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

type connKey struct{}

// ConnContext is for [http.Server]: it remembers by which listener a request has come.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c.LocalAddr().Network() == "unix")
}

// bySocket says whether a request has come by a Unix socket, which only those can open who may.
func bySocket(r *http.Request) bool {
	local, _ := r.Context().Value(connKey{}).(bool)
	return local
}

// bearer returns the token that a request gives in its header.
func bearer(r *http.Request) (given string, is bool) {
	return strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
}

// knows says whether a request has the token, or a session that was begun with it. It counts nothing: the right token is taken however many
// wrong ones came before.
func (s *Server) knows(r *http.Request) bool {
	if s.Token == "" {
		return false
	}
	if given, is := bearer(r); is {
		return same(given, s.Token)
	}
	c, err := r.Cookie(sessionCookie)
	if err != nil {
		return false
	}
	until, mac, _ := strings.Cut(c.Value, ".")
	end, err := strconv.ParseInt(until, 10, 64)
	return err == nil && time.Now().Unix() < end && same(mac, hex.EncodeToString(sign(s.keys.session, until)))
}

// key is under which a request counts.
func (s *Server) key(r *http.Request) string {
	if s.mayControl(r) {
		return owner
	}
	return remote(r)
}

// mayControl says whether a request may change something.
func (s *Server) mayControl(r *http.Request) bool { return bySocket(r) || s.knows(r) }

// beginSession gives a session to who has shown the token.
func (s *Server) beginSession(w http.ResponseWriter, r *http.Request) {
	until := strconv.FormatInt(time.Now().Add(sessionTime).Unix(), 10)
	s.setCookie(w, r, sessionCookie, until+"."+hex.EncodeToString(sign(s.keys.session, until)), int(sessionTime/time.Second))
}

func (s *Server) setCookie(w http.ResponseWriter, r *http.Request, name, value string, age int) {
	http.SetCookie(w, &http.Cookie{
		Name: name, Value: value, Path: s.Base + "/", MaxAge: age, HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https",
	})
}

// formSecret returns what a form of this page has to have in it, and gives the browser what it is bound to.
func (s *Server) formSecret(w http.ResponseWriter, r *http.Request) string {
	c, err := r.Cookie(pageCookie)
	if err != nil || len(c.Value) != 32 {
		c = &http.Cookie{Value: rand.Text() + rand.Text()[:6]}
		s.setCookie(w, r, pageCookie, c.Value, 0)
	}
	return hex.EncodeToString(sign(s.keys.page, c.Value))
}

// fromOurPage says whether a form came from a page of this server, in the same browser.
func (s *Server) fromOurPage(r *http.Request) bool {
	c, err := r.Cookie(pageCookie)
	if err != nil || s.crossOrigin.Check(r) != nil {
		return false
	}
	return same(r.PostFormValue("secret"), hex.EncodeToString(sign(s.keys.page, c.Value)))
}

// knownHost says whether a request names this machine, or a name that it was told. Else any name of the internet that leads to a loopback
// address would be an origin of the page (DNS rebinding).
func (s *Server) knownHost(r *http.Request) bool {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.ToLower(strings.Trim(host, "[]")), ".") // a name of DNS has no case, and may end with a dot
	if host == "localhost" || slices.ContainsFunc(s.Hosts, func(name string) bool { return strings.EqualFold(strings.TrimSuffix(name, "."), host) }) {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && (ip.IsLoopback() || s.Open)
}
