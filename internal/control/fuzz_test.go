package control

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/config"
	"hinit/supervisor"
)

// FuzzRequests checks that every request gets a JSON answer without an internal error, and that only clients that may
// control services change anything.
func FuzzRequests(f *testing.F) {
	for _, rt := range routes() {
		method, path, _ := strings.Cut(rt.pattern, " ")
		f.Add(method, strings.ReplaceAll(path, "{name}", "coder"), "", []byte("{}"), uint32(0))
	}
	f.Add("POST", "/v1/services/coder/stop", "", []byte(`{"wait":false,"timeout_ms":1}`), uint32(12345))
	f.Add("POST", "/v1/services/coder/start", "x=1", []byte(`{"wait":true,"timeout_ms":-1}{}`), uint32(10000))
	f.Add("GET", "/v1/events", "since=1&last=2&follow=1", []byte(nil), uint32(0))
	f.Add("GET", "/v1/status", "name=%ff&name=coder&name=;", []byte("\x00"), uint32(0))
	f.Add("PUT", "/v1/services/..%2f../start", "%", []byte(`{"wait":null}`), uint32(1))
	f.Fuzz(func(t *testing.T, method, path, query string, body []byte, uid uint32) {
		r := &http.Request{
			Method: method, URL: &url.URL{Path: "/" + strings.TrimPrefix(path, "/"), RawQuery: query}, Host: "hinit", Header: http.Header{},
			Body: http.NoBody, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		}
		if len(body) > 0 {
			r = httptest.NewRequest(http.MethodPost, "/", strings.NewReader(string(body)))
			r.Method, r.URL.Path, r.URL.RawQuery = method, "/"+strings.TrimPrefix(path, "/"), query
		}
		ctx, cancel := context.WithCancel(context.WithValue(context.Background(), peerKey{}, peer{pid: 1, uid: uid}))
		cancel()
		core := newFakeBackend(newGateway("coder", supervisor.Up), newGateway("x", supervisor.Down))
		s := newServer(core, Options{AgentUID: 10000, OtherUsers: config.OthersMayReadStatus})
		w := httptest.NewRecorder()
		begin := time.Now()
		s.serve(w, r.WithContext(ctx))
		if time.Since(begin) > 5*time.Second {
			t.Errorf("it took %v", time.Since(begin))
		}
		if strings.Contains(w.Body.String(), string(client.KindInternal)+`"`) {
			t.Errorf("%s %s?%s %q of %d is answered with %d %s", method, path, query, body, uid, w.Code, w.Body)
		}
		if asked := core.receivedCommands(); asked != "" && s.policy.classOf(peer{uid: uid}) == otherClass {
			t.Errorf("%s %s of %d had the effect %q", method, path, uid, asked)
		}
	})
}
