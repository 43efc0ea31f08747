package control

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/supervisor"
)

const (
	headerTimeout  = 5 * time.Second        // time limit for a header, from the start of a connection or from the first byte of a later request
	idleTimeout    = 30 * time.Second       // time limit between two requests
	closeTimeout   = 500 * time.Millisecond // time limit for requests to end when the server is closed
	flushTimeout   = 200 * time.Millisecond // time limit for sending the answers, after closeTimeout
	maxHeaderBytes = 8 << 10
	maxBodyBytes   = 64 << 10
)

// Causes with which Close and CloseForReexec cancel the contexts of requests.
var (
	errClosing  = &client.Error{Kind: client.KindStopping, Message: "hinit is ending"}
	errReplaced = &client.Error{Kind: client.KindReplaced, Message: "hinit is becoming another image of itself; ask it again"}
)

// Server answers the control API. New creates it.
type Server struct {
	backend         Backend
	policy          accessPolicy
	log             func(string)
	onRequest       func()
	now             func() time.Time
	bodyTimeout     time.Duration // time limit from the end of the header to the end of the body
	sendTimeout     time.Duration // time limit for a client to read one piece of an answer
	bootListTimeout time.Duration // how long a request with the name of a service waits until the boot has listed the profiles
	routeTimeLimit  func(route) time.Duration
	http            *http.Server
	mux             *http.ServeMux
	connCounts      connCounts
	answerBudgets   [numClasses]*answerBudget // memory for unread answers, by class of clients
	cancel          context.CancelCauseFunc
	noticeLimit     [numClasses]noticeLimit

	mu         sync.Mutex
	closeError *client.Error // error for new requests once the server is closed; nil before
	handlers   sync.WaitGroup
}

// New returns a server that isn't listening yet.
func New(core Backend, o Options) *Server {
	s := &Server{
		backend: core, policy: newPolicy(o), log: o.Log, onRequest: o.OnRequest, now: time.Now, mux: http.NewServeMux(),
		bodyTimeout: 5 * time.Second, sendTimeout: 10 * time.Second, bootListTimeout: 2 * time.Second,
		routeTimeLimit: func(rt route) time.Duration { return rt.timeLimit }, answerBudgets: newAnswerBudgets(),
	}
	base, cancel := context.WithCancelCause(context.Background())
	s.cancel = cancel
	s.http = &http.Server{
		Handler:           http.HandlerFunc(s.serve),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(context.WithValue(ctx, connKey{}, c), peerKey{}, c.(*conn).peer)
		},
		ErrorLog: log.New(logWriter(s.log), "", 0),
	}
	for _, rt := range routes() {
		s.mux.HandleFunc(rt.pattern, func(w http.ResponseWriter, r *http.Request) { s.serveRoute(rt, w, r) })
	}
	s.mux.HandleFunc("/", s.serveUnknownRoute)
	return s
}

// Serve answers the connections of l, a listener from [Listen], and closes l. It blocks until Close, and then returns nil.
func (s *Server) Serve(l net.Listener) error {
	err := s.http.Serve(&limitedListener{Listener: l, policy: s.policy, counts: &s.connCounts})
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("cannot keep serving the control socket: %w", err)
}

// Close stops listening, ends streams and waiting requests with an answer, and returns when no request is active. A client that
// doesn't read its answer within half a second is cut off. When ctx ends, Close cuts off all clients and returns an error. It
// may be called only once.
func (s *Server) Close(ctx context.Context) error { return s.close(ctx, errClosing) }

// CloseForReexec closes the server for a re-execution: the answers tell waiting clients to ask again.
func (s *Server) CloseForReexec(ctx context.Context) error { return s.close(ctx, errReplaced) }

// close ends the server. New requests and waiting requests get the error why. Other requests have a short time to end and to
// send their answers. Then close closes all connections. It returns an error if some handlers still run when ctx ends.
func (s *Server) close(ctx context.Context, why *client.Error) error {
	s.mu.Lock()
	s.closeError = why
	s.mu.Unlock()
	s.cancel(why)
	idle := guard.GoWithDone("waiting for the end of all requests", s.handlers.Wait)
	grace, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	pause.Until(grace, idle)
	// Shutdown waits long for clients that have sent no request. Close then cuts these clients off.
	flush, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	_ = s.http.Shutdown(flush) // http.Server.Close then cuts the remaining connections
	_ = s.http.Close()
	if !pause.Until(ctx, idle) {
		return fmt.Errorf("cannot end all requests of the control socket: %w", context.Cause(ctx))
	}
	return nil
}

// beginRequest counts a request in progress, or returns the error for the client of a closed server.
func (s *Server) beginRequest() *client.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closeError == nil {
		s.handlers.Add(1)
	}
	return s.closeError
}

// serve is the handler of all requests. It refuses them once the server is closed.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 { // the client may announce a body and not send it
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.bodyTimeout))
	}
	if err := s.beginRequest(); err != nil {
		if err.Kind == client.KindReplaced { // the request had no effect, so the client may repeat it
			err = newError(client.KindBusy, "%s", err.Message)
		}
		s.send(w, errorReply(err))
		return
	}
	defer s.onRequest()
	defer s.handlers.Done()
	s.mux.ServeHTTP(w, r)
}

// serveRoute answers a request that has a route.
func (s *Server) serveRoute(rt route, w http.ResponseWriter, r *http.Request) {
	out := s.handle(rt, w, r)
	if out.onSent != nil {
		defer out.onSent()
	}
	if out.stream == nil {
		s.send(w, out.asText(r))
		return
	}
	defer func() {
		if p := recover(); p != nil {
			s.reportPanic(r, p)
			panic(http.ErrAbortHandler) // after a partial answer, cutting the connection is the only way to report the fault
		}
	}()
	out.stream(w)
}

// handle checks access, reads the body and runs the handler. If the handler panics, the client gets an error.
func (s *Server) handle(rt route, w http.ResponseWriter, r *http.Request) (out reply) {
	defer func() {
		if p := recover(); p != nil {
			s.reportPanic(r, p)
			out = errorReply(newError(client.KindInternal, "hinit has a fault in its control API; its log has the details"))
		}
	}()
	who, ok := r.Context().Value(peerKey{}).(peer)
	if !ok {
		return errorReply(newError(client.KindNotAllowed, "hinit does not know who is asking"))
	}
	if err := s.policy.check(who, rt.access); err != nil {
		return errorReply(err)
	}
	if rt.access != mayRead && r.Method == http.MethodPost {
		r = r.WithContext(supervisor.WithAuthor(r.Context(), authorOf(rt, who)))
	}
	body, bad := readBody(w, r)
	if bad != nil {
		return errorReply(bad)
	}
	req := &request{Request: r, route: rt, client: who, body: body}
	err := req.parseQuery()
	if err == nil {
		out, err = s.runHandler(rt, req)
	}
	if err == nil && out.deferredBody != nil {
		out, err = s.answerBudgets[s.policy.classOf(who)].makeAnswer(r.Context(), func() (reply, error) { return jsonReply(out.status, out.deferredBody) })
	}
	if err != nil {
		return errorReply(clientError(r.Context(), err))
	}
	return out
}

// runHandler runs the handler within the time limit of the route. If the route needs the end of the boot, runHandler first
// waits for it.
func (s *Server) runHandler(rt route, r *request) (reply, error) {
	limit := s.routeTimeLimit(rt)
	if limit == 0 {
		return rt.handle(s, r)
	}
	begin := time.Now()
	if rt.waitMode == waitsForBoot {
		if _, err := s.awaitBoot(r, limit); err != nil {
			return reply{}, err
		}
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), limit-time.Since(begin), timeLimitError(limit))
	defer cancel()
	r.Request = r.WithContext(ctx)
	return rt.handle(s, r)
}

func (s *Server) reportPanic(r *http.Request, p any) {
	s.log(fmt.Sprintf("fault in the control API: %s %s: %v\n%s", r.Method, r.URL.Path, p, debug.Stack()))
}

// readBody reads the whole body, so that no handler waits for the client.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, *client.Error) {
	if r.ContentLength == 0 {
		return nil, nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodyBytes))
	if err != nil {
		if tooBig := (*http.MaxBytesError)(nil); errors.As(err, &tooBig) {
			return nil, newError(client.KindBadRequest, "the body is longer than %d bytes", maxBodyBytes)
		}
		return nil, newError(client.KindBadRequest, "the body did not arrive: %v", err)
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	return body, nil
}

// serveUnknownRoute answers a request for an unknown route. If the path exists with another method, the answer names that method.
func (s *Server) serveUnknownRoute(w http.ResponseWriter, r *http.Request) {
	out := errorReply(newError(client.KindBadRequest, "no such endpoint %q", r.URL.Path))
	out.status = http.StatusNotFound
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := s.mux.Handler(other); pattern != "/" {
			w.Header().Set("Allow", method)
			out = errorReply(newError(client.KindBadRequest, "%q takes %s, not %s", r.URL.Path, method, r.Method))
			out.status = http.StatusMethodNotAllowed
			break
		}
	}
	s.send(w, out)
}

// logWriter passes messages of net/http to the server's log.
type logWriter func(string)

func (f logWriter) Write(b []byte) (int, error) {
	f("control socket: " + strings.TrimSpace(string(b)))
	return len(b), nil
}

func newError(kind client.Kind, format string, args ...any) *client.Error {
	return &client.Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

// httpStatus returns the HTTP status for a kind of error.
func httpStatus(kind client.Kind) int {
	status := map[client.Kind]int{
		client.KindUnknown: http.StatusNotFound, client.KindNotAllowed: http.StatusForbidden, client.KindBadRequest: http.StatusBadRequest,
		client.KindStopping: http.StatusServiceUnavailable, client.KindBusy: http.StatusServiceUnavailable, client.KindReplaced: http.StatusServiceUnavailable,
		client.KindTimeout: http.StatusGatewayTimeout, client.KindFailed: http.StatusConflict, client.KindPermanent: http.StatusConflict,
	}[kind]
	return cmp.Or(status, http.StatusInternalServerError)
}

// clientError converts the error of a handler to the error for the client.
func clientError(ctx context.Context, err error) *client.Error {
	var e *client.Error
	if errors.As(err, &e) {
		return e
	}
	kind := client.KindFailed
	switch {
	case errors.Is(err, supervisor.ErrUnknown):
		kind = client.KindUnknown
	case errors.Is(err, supervisor.ErrStopping):
		kind = client.KindStopping
	case errors.As(context.Cause(ctx), &e): // the server is closed
		return e
	case errors.Is(err, context.DeadlineExceeded):
		kind = client.KindTimeout
	}
	return &client.Error{Kind: kind, Message: err.Error()}
}

// reply is the answer of a handler: a body, or a stream that writes the body.
type reply struct {
	status       int
	header       http.Header // headers besides the default content type (JSON)
	body         []byte
	deferredBody any // body that is encoded when the budget has memory for it, see deferredReply
	stream       func(w http.ResponseWriter)
	clientError  *client.Error // error in the body, or nil
	onSent       func()        // called after the body is written; may be nil
}

func okReply(v any) (reply, error) { return jsonReply(http.StatusOK, v) }

func jsonReply(status int, v any) (reply, error) {
	var body bytes.Buffer
	if err := newEncoder(&body).Encode(v); err != nil {
		return reply{}, newError(client.KindInternal, "hinit cannot write its answer as JSON: %v", err)
	}
	return reply{status: status, body: body.Bytes()}, nil
}

// deferredReply returns an answer that is encoded as JSON only when the answerBudget has memory for it. Otherwise many clients
// that leave their answers unread could fill the memory.
func deferredReply(status int, v any, err error) (reply, error) {
	return reply{status: status, deferredBody: v}, err
}

func newEncoder(w io.Writer) *json.Encoder {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e
}

func errorReply(e *client.Error) reply {
	out, _ := jsonReply(httpStatus(e.Kind), client.ErrorReply{Error: *e}) // encoding a struct of two strings never fails
	out.clientError = e
	return out
}

// wantsText reports whether the client asks for plain text instead of JSON.
func wantsText(r *http.Request) bool { return r.Header.Get("Accept") == client.MediaTypeText }

// textReply returns an answer in plain text. It escapes characters that could control a terminal.
func textReply(status int, header http.Header, body []byte) reply {
	header.Set("Content-Type", client.MediaTypeText+"; charset=utf-8")
	return reply{status: status, header: header, body: []byte(show.EscapeText(string(body)))}
}

// asText converts an error to plain text, with its kind in a header, if the client asks for text. It returns any other answer
// unchanged.
func (out reply) asText(r *http.Request) reply {
	if out.clientError == nil || !wantsText(r) {
		return out
	}
	return textReply(out.status, http.Header{client.ErrorHeader: {string(out.clientError.Kind)}}, []byte(out.clientError.Message))
}

// send writes an answer to the client, unless the answer is a stream.
func (s *Server) send(w http.ResponseWriter, out reply) {
	h := w.Header()
	if out.body != nil {
		h.Set("Content-Type", "application/json")
		maps.Copy(h, out.header)
		h.Set("Content-Length", strconv.Itoa(len(out.body)))
	}
	if out.status >= http.StatusBadRequest {
		h.Set("Connection", "close")
	}
	s.extendWriteDeadline(w)
	w.WriteHeader(out.status)
	_, _ = w.Write(out.body)
}

// extendWriteDeadline sets the deadline for the next write to the client.
func (s *Server) extendWriteDeadline(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.sendTimeout))
}
