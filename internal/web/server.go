package web

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"hinit/client"
	"hinit/internal/fsutil"
	"hinit/internal/metrics"
)

//go:embed templates static
var files embed.FS

// HinitClient is the connection of the page to hinit. [dial.Client] implements it; tests replace it.
type HinitClient interface {
	metrics.Source
	Watch(ctx context.Context, fn func(client.StatusChange) error) error
	Order(ctx context.Context, verb client.Verb, name string, wait client.WaitOptions) (client.Service, error)
}

// Options are the settings of a [Server].
type Options struct {
	Hinit        HinitClient
	Metrics      http.Handler                             // handler for /metrics
	Token        string                                   // token for reading and control; with "" all may read, and no TCP client may control
	Proc         func(client.Init) string                 // returns a /proc with the services' processes; nil or "" means none
	LogReader    func(client.Init) (*fsutil.Actor, error) // returns the identity with which to open log files
	Programs     Programs
	Base         string       // path under which a reverse proxy publishes the page: "" or "/x"
	AllowedHosts []string     // names of this machine besides localhost, for requests without a token
	Open         bool         // accept any IP address as the host in requests
	Log          *slog.Logger // log for errors of the server; nil: none
}

var (
	errNoHinit   = errors.New("what listens on the control socket does not answer as hinit does")
	errNoReaders = errors.New("no page is read")

	errNoAnswer = errors.New("hinit does not answer")
)

const (
	maxStreams        = 2000                   // maximum number of open pages with live updates
	maxFollowers      = 64                     // maximum number of open pages that follow a log
	maxSearches       = 8                      // maximum number of concurrent log searches
	minChangeInterval = 200 * time.Millisecond // minimum time between two changes for a reader
)

// Server serves the status page. It implements [http.Handler].
type Server struct {
	Options
	hub            *hub
	boards         programOutput
	sandboxes      programOutput
	sessionKey     []byte        // signs session cookies; derived from the token, so a new token ends all sessions
	writeTimeout   time.Duration // time after which a blocked write disconnects the client
	heartbeatPause time.Duration // pause between two heartbeats of a stream
	pages          *template.Template
	requests       *limiter
	guesses        *limiter
	streams        *connectionLimit // limit on the streams that keep open pages up to date
	followers      *connectionLimit // limit on the streams of logs
	searches       *connectionLimit // limit on the searches in logs
	mux            *http.ServeMux
	ended          chan struct{} // closed when Run ends; then all streams end
}

// New returns a Server. Call [Server.Run] to update its pages.
func New(o Options) (*Server, error) {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	s := &Server{
		Options: o, hub: newHub(o.Hinit, o.Proc), boards: programOutput{run: o.Programs.Boards, emptyOutput: "[]"}, sandboxes: programOutput{run: o.Programs.Sandboxes}, writeTimeout: writeTimeout, heartbeatPause: 15 * time.Second, requests: newLimiter(50, 200), guesses: newLimiter(1.0/6, 10),
		streams: newConnectionLimit(maxStreams), followers: newConnectionLimit(maxFollowers),
		searches: newConnectionLimit(maxSearches), ended: make(chan struct{}),
	}
	s.sessionKey = []byte(sign([]byte(o.Token), "hinit session"))
	var err error
	if s.pages, err = template.New("").Funcs(s.functions()).ParseFS(files, "templates/*.html"); err != nil {
		return nil, err
	}
	s.hub.makeRowView = s.view
	s.hub.render = func(name string, data any) template.HTML {
		var w bytes.Buffer
		if s.pages.ExecuteTemplate(&w, name, data) != nil {
			return ""
		}
		return template.HTML(w.String()) //nolint:gosec // the template has escaped the text
	}
	static, err := fs.Sub(files, "static")
	if err != nil {
		return nil, err
	}
	s.mux = http.NewServeMux()
	s.mux.Handle("GET /static/", http.StripPrefix("/static/", http.FileServerFS(static)))
	s.mux.HandleFunc("GET /{$}", s.requireReader(s.showList))
	s.mux.HandleFunc("GET /live", s.requireReader(s.streamList))
	s.mux.HandleFunc("GET /names", s.requireReader(s.listNames))
	s.mux.HandleFunc("GET /events", s.requireReader(s.showTimeline))
	s.mux.HandleFunc("GET /boards", s.requireReader(s.boardsPage))
	s.mux.HandleFunc("GET /sandboxes", s.requireReader(s.sandboxesPage))
	s.mux.HandleFunc("GET /service/{name}", s.withService(s.showService))
	s.mux.HandleFunc("GET /service/{name}/follow", s.withService(s.streamLog))
	s.mux.HandleFunc("GET /service/{name}/log", s.withService(s.logPage))
	s.mux.HandleFunc("GET /service/{name}/download", s.withService(s.download))
	s.mux.HandleFunc("GET /service/{name}/stop", s.requireReader(s.confirmStop))
	s.mux.HandleFunc("POST /service/{name}/{verb}", s.giveOrder)
	s.mux.HandleFunc("GET /group/{name}", s.requireReader(s.showList))
	s.mux.HandleFunc("GET /group/{name}/stop", s.requireReader(s.confirmStop))
	s.mux.HandleFunc("POST /group/{name}/{verb}", s.giveOrder)
	s.mux.HandleFunc("GET /login", s.login)
	s.mux.HandleFunc("POST /login", s.login)
	s.mux.HandleFunc("POST /logout", s.logout)
	s.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	s.mux.HandleFunc("GET /metrics", s.requireReader(o.Metrics.ServeHTTP))
	return s, nil
}

// Run follows hinit until ctx ends: it reads the events, measures the usage, and reads the status while the page has readers.
func (s *Server) Run(ctx context.Context) {
	defer close(s.ended)
	s.hub.run(ctx)
}

const contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", contentSecurityPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	key := s.limitKey(r)
	if !s.requests.allowRequest(key) {
		h.Set("Retry-After", "1")
		http.Error(w, "too many requests", http.StatusTooManyRequests)
		return
	}
	if _, is := bearerTokenOf(r); is && key != ownerLimitKey && s.Token != "" && !s.guesses.allowRequest(key) {
		w.Header().Set("Retry-After", "60")
		http.Error(w, "too many wrong tokens from this address; wait a minute, or send the right one", http.StatusTooManyRequests)
		return
	}
	if (isUnixSocket(r) || s.Token == "") && !s.isKnownHost(r) {
		http.Error(w, "cannot answer to this name: start hinit web with --host NAME", http.StatusMisdirectedRequest)
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	r.Body = http.MaxBytesReader(w, r.Body, 64<<10)
	path := r.URL.Path
	if s.Base != "" {
		if rest, below := strings.CutPrefix(path, s.Base); below && (rest == "" || rest[0] == '/') {
			path = rest
		}
		if path == "" {
			http.Redirect(w, r, s.Base+"/", http.StatusFound)
			return
		}
	}
	if strings.HasPrefix(path, "/static/") {
		h.Set("Cache-Control", "max-age=3600")
	}
	inner := r.Clone(r.Context())
	inner.URL.Path, inner.URL.RawPath = path, ""
	s.mux.ServeHTTP(w, inner)
}

// requireReader returns a handler that calls page only for clients that may read: all clients without a token, otherwise
// clients with the token or on the Unix socket.
func (s *Server) requireReader(page http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if s.mayRead(r) {
			page(w, r)
			return
		}
		if strings.Contains(r.Header.Get("Accept"), "text/html") {
			http.Redirect(w, r, s.Base+"/login", http.StatusSeeOther)
			return
		}
		w.Header().Set("WWW-Authenticate", "Bearer")
		http.Error(w, "cannot answer without the token", http.StatusUnauthorized)
	}
}

// pageService is the service of a page. If its status is outdated, fault says why; otherwise fault is nil.
type pageService struct {
	*client.Service
	init  client.Init
	fault error
}

// withService makes a handler from page, a handler for the service in the path of the request.
func (s *Server) withService(page func(w http.ResponseWriter, r *http.Request, of pageService)) http.HandlerFunc {
	return s.requireReader(func(w http.ResponseWriter, r *http.Request) {
		st, err := s.hub.currentStatus(r.Context())
		v := st.Find(r.PathValue("name"))
		if v == nil {
			s.showServiceError(w, r, err)
			return
		}
		page(w, r, pageService{v, st.Init, err})
	})
}

// pageData is the data for the template of every page.
type pageData struct {
	Title   string
	Base    string
	Control bool
	Session bool
	Page    any

	Boards, Sandboxes bool // show entries for the boards and the sandboxes in the navigation
}

// showPage sends a page from the template name with the content page.
func (s *Server) showPage(w http.ResponseWriter, r *http.Request, code int, name, title string, page any) {
	f := pageData{Title: title, Base: s.Base, Control: s.mayControl(r), Page: page}
	if _, err := r.Cookie(sessionCookie); err == nil {
		f.Session = f.Control
	}
	if s.mayRead(r) {
		f.Boards, f.Sandboxes = s.optionalPages()
	}
	var b bytes.Buffer
	if err := s.pages.ExecuteTemplate(&b, name, f); err != nil {
		s.Log.Error("cannot make a page", "page", name, "error", err)
		http.Error(w, "cannot make this page", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write(b.Bytes())
}

// maxConns is the maximum number of connections of a listener, which closes further connections.
const maxConns = 4096

// sendBuffer is the size in bytes of the kernel's buffer for data that a client has not read.
const sendBuffer = 64 << 10

// NewHTTPServer returns an HTTP server for s, with limits against slow and hostile clients.
func NewHTTPServer(s *Server) *http.Server {
	return &http.Server{
		Handler: s, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10,
	}
}

// Listen opens a listener at an address: "HOST:PORT" or "unix:PATH". Only this user can connect to the Unix socket. The
// listener serves only connections for which allow returns true. Listen replaces an existing socket file without a listener.
func Listen(ctx context.Context, address string, allow func(net.Conn) bool) (net.Listener, error) {
	path, isSocket := strings.CutPrefix(address, "unix:")
	if !isSocket {
		return listen(ctx, "tcp", address, func(net.Conn) bool { return true })
	}
	if conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", path); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("another program listens on %q", path)
	} else if errors.Is(err, syscall.ECONNREFUSED) {
		if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSocket != 0 {
			_ = os.Remove(path)
		}
	}
	old := syscall.Umask(0o177) // before a later chmod, other users could connect
	defer syscall.Umask(old)
	return listen(ctx, "unix", path, allow)
}

func listen(ctx context.Context, network, address string, allow func(net.Conn) bool) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &boundedListener{Listener: l, allow: allow, conns: newConnectionLimit(maxConns)}, nil
}

// Loopback reports whether only this machine can reach an address.
func Loopback(address string) bool {
	if strings.HasPrefix(address, "unix:") {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// boundedListener is a listener that limits the connections, in total and for each remote address. It closes further
// connections at once, so that a client never waits behind a slow one. It also closes connections that allow refuses.
type boundedListener struct {
	net.Listener
	allow func(net.Conn) bool
	conns *connectionLimit
}

func (b *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		key := ownerLimitKey
		if c.RemoteAddr().Network() != "unix" {
			key = addressKey(c.RemoteAddr().String())
		}
		if b.allow(c) && b.conns.acquire(key) {
			if tcp, is := c.(*net.TCPConn); is {
				_ = tcp.SetWriteBuffer(sendBuffer) // for a client that does not read, the default buffer would grow to megabytes
			}
			return &countedConn{Conn: c, close: sync.OnceValue(func() error {
				b.conns.release(key)
				return c.Close()
			})}, nil
		}
		_ = c.Close()
	}
}

// countedConn is a connection that a connectionLimit counts until it is closed.
type countedConn struct {
	net.Conn
	close func() error
}

func (c *countedConn) Close() error { return c.close() }
