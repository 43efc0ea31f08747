package web

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"hinit/client"
	"hinit/internal/fsutil"
	"hinit/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.IsolateProcess()
	writeTimeout = testkit.Patience // under the race detector, beside other tests, a megabyte of HTML took longer than the limit
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("hinit/logrotate.(*watching).run"))
}

var runningInit = client.Init{Version: "1.0", StartedAt: time.Now().Add(-25 * time.Hour)}

// fakeHinit is a hinit whose status the test sets.
type fakeHinit struct {
	mu              sync.Mutex
	services        []client.Service
	fault           error
	hangs           bool
	wrongOrderReply bool
	recordedOrders  []string
	changed         chan struct{}
	events          []client.Event
	statusCalls     int
}

func newFakeHinit(services ...client.Service) *fakeHinit {
	return &fakeHinit{services: services, changed: make(chan struct{})}
}

func (f *fakeHinit) change(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeHinit) snapshot() (list []client.Service, hang bool, changed <-chan struct{}, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]client.Service(nil), f.services...), f.hangs, f.changed, f.fault
}

func (f *fakeHinit) Status(ctx context.Context, names ...string) (client.Status, error) {
	list, hang, _, err := f.snapshot()
	f.mu.Lock()
	f.statusCalls++
	lie := f.wrongOrderReply
	f.mu.Unlock()
	if hang {
		<-ctx.Done()
		return client.Status{}, ctx.Err()
	}
	if lie {
		return client.Status{Version: 7}, nil
	}
	return client.Status{Version: client.StatusVersion, Init: runningInit, Services: list}, err
}

func (f *fakeHinit) Watch(ctx context.Context, fn func(client.StatusChange) error) error {
	for {
		list, hang, changed, err := f.snapshot()
		if hang {
			<-ctx.Done()
			return ctx.Err()
		}
		if err != nil {
			return err
		}
		if err := fn(client.StatusChange{IsComplete: true, Init: runningInit, Services: list}); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-time.After(time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *fakeHinit) Events(ctx context.Context, o client.EventOptions, fn func(client.Event) error) error {
	given := 0
	for {
		f.mu.Lock()
		events, changed := f.events, f.changed
		f.mu.Unlock()
		for _, e := range events[min(given, len(events)):] {
			if err := fn(e); err != nil {
				return err
			}
		}
		given = len(events)
		if !o.Follow {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *fakeHinit) Order(_ context.Context, verb client.Verb, name string, _ client.WaitOptions) (client.Service, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.recordedOrders = append(f.recordedOrders, string(verb)+" "+name)
	return client.Service{}, f.fault
}

func (f *fakeHinit) orders() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.recordedOrders...)
}

// testSite is a running server and a browser without scripts.
type testSite struct {
	*testing.T
	*Server
	url    string
	socket string
	jar    map[string]string
}

func startTestSite(t *testing.T, o Options) *testSite {
	t.Helper()
	if o.LogReader == nil {
		o.LogReader = func(client.Init) (*fsutil.Actor, error) { return fsutil.ProcessActor(), nil }
	}
	if o.Metrics == nil {
		o.Metrics = http.NotFoundHandler()
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx) })
	out := &testSite{T: t, Server: s, socket: filepath.Join(t.TempDir(), "s"), jar: map[string]string{}}
	server := NewHTTPServer(s)
	for _, address := range []string{"127.0.0.1:0", "unix:" + out.socket} {
		l, err := Listen(t.Context(), address, func(net.Conn) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		if address != "unix:"+out.socket {
			out.url = "http://" + l.Addr().String()
		}
		wg.Go(func() { _ = server.Serve(l) })
	}
	t.Cleanup(func() {
		cancel()
		_ = server.Close()
		wg.Wait()
	})
	return out
}

func (s *testSite) request(method, path string, form url.Values, header ...string) (int, string) {
	s.Helper()
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	r, err := http.NewRequestWithContext(s.Context(), method, s.url+path, body)
	if err != nil {
		s.Fatal(err)
	}
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	r.Header.Set("Accept", "text/html")
	for name, value := range s.jar {
		r.AddCookie(&http.Cookie{Name: name, Value: value})
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
		r.Header.Set(header[i], header[i+1])
	}
	transport := &http.Transport{DisableKeepAlives: true}
	if _, by := r.Header["By-Socket"]; by {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", s.socket)
		}
	}
	answer, err := transport.RoundTrip(r)
	if err != nil {
		s.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		s.Fatal(err)
	}
	for _, c := range answer.Cookies() {
		s.jar[c.Name] = c.Value
	}
	if to := answer.Header.Get("Location"); to != "" {
		text = append(text, " to "+to...)
	}
	return answer.StatusCode, string(text)
}

const testToken = "a token of the tests"

func coderGateway() client.Service {
	return client.Service{Name: "gateway-coder", Profile: "coder", State: client.StateUp, Ready: true, Want: client.WantUp, Since: time.Now()}
}

func TestNothingThatOthersChoseBecomesMarkup(t *testing.T) {
	const evil = `"><script>alert(1)</script><img src=x onerror=alert(2)> javascript:alert(3) {{.}} ` + "\x1b[31m\u202e\xff\x00"
	const name = `"><img src=x onerror=alert(2)> javascript:alert(3) {{.}}`
	code := 1
	dir := t.TempDir()
	key := "sk-" + "ant-api03-" + strings.Repeat("abcd1234", 12)
	line := "2026-01-02 03:04:05.123456789  " + evil + "\n2026-01-02 03:04:05.123456789  key " + key + "\n"
	if err := os.WriteFile(filepath.Join(dir, "current"), []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFakeHinit(client.Service{
		Name: name, Profile: evil, State: evil, Reason: evil, Problem: evil + key, Log: filepath.Join(dir, "current"), Command: []string{evil, key},
		LastExit: &client.Exit{Code: &code, Cause: evil, Error: evil, Tail: []string{evil, key}}, ExitsByCause: map[string]int{evil: 1},
	})
	f.events = []client.Event{{Seq: 1, At: time.Now(), Service: name, FromState: evil, ToState: evil, Reason: evil + key}}
	s := startTestSite(t, Options{Hinit: f})
	testkit.Until(t, "the event is known", func() bool { return len(s.hub.history()) == 1 })
	for _, path := range []string{"/?q=" + url.QueryEscape(evil), "/service/" + url.PathEscape(name) + "?q=script", "/events", "/service/" + url.PathEscape("<script>x"), "/?state=" + url.QueryEscape(evil), "/service/" + url.PathEscape(name) + "?q=key"} {
		_, page := s.request("GET", path, nil)
		lower := strings.ToLower(page)
		if strings.Contains(lower, "<script>") || strings.Contains(lower, "<img") || strings.Contains(lower, "onerror=alert(2)>") && !strings.Contains(lower, "onerror=alert(2)&gt;") {
			t.Errorf("%s: markup of somebody else in\n%s", path, page)
		}
		for _, bad := range []string{"\x1b", "\u202e", "\x00", "\xff", key} {
			if strings.Contains(page, bad) {
				t.Errorf("%s shows %q", path, bad)
			}
		}
	}
	if _, page := s.request("GET", "/service/"+url.PathEscape(name)+"?q=key", nil); !strings.Contains(page, "key ***") {
		t.Errorf("the log is not shown: %s", page)
	}
}

func TestWhatABrowserMayDo(t *testing.T) {
	s := startTestSite(t, Options{Hinit: newFakeHinit(coderGateway())})
	r := httptest.NewRequest("GET", "http://127.0.0.1/", nil)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	if p := w.Header().Get("Content-Security-Policy"); !strings.Contains(p, "default-src 'none'") || strings.Contains(p, "unsafe") {
		t.Errorf("policy %q", p)
	}
	if inline := regexp.MustCompile(`(?i)<script>|<style|\son\w+=|\sstyle=`).FindString(w.Body.String()); inline != "" {
		t.Errorf("%q is inline", inline)
	}
	if code, _ := s.request("GET", "/", nil, "Host", "evil.example"); code != http.StatusMisdirectedRequest {
		t.Errorf("another name than localhost is answered with %d", code)
	}
}

func TestWithoutATokenOnlyASocketControls(t *testing.T) {
	f := newFakeHinit(coderGateway())
	s := startTestSite(t, Options{Hinit: f})
	if _, page := s.request("GET", "/service/gateway-coder", nil); strings.Contains(page, "<button>Stop") {
		t.Error("a page for reading has buttons")
	}
	if code, _ := s.request("POST", "/service/gateway-coder/stop", url.Values{}); code != http.StatusForbidden {
		t.Errorf("a command is answered with %d", code)
	}
	if code, _ := s.request("POST", "/service/gateway-coder/stop", url.Values{}, "Authorization", "Bearer "); code != http.StatusForbidden {
		t.Errorf("a command with an empty token is answered with %d", code)
	}
	info, err := os.Stat(s.socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket has %v, %v", info.Mode(), err)
	}
	if code, text := s.request("POST", "/service/gateway-coder/stop", url.Values{}, "By-Socket", "1"); code != http.StatusSeeOther {
		t.Errorf("by the socket: %d %s", code, text)
	}
	if got := fmt.Sprint(f.orders()); got != "[stop gateway-coder]" {
		t.Errorf("hinit was told %s", got)
	}
}

// A forwarded socket (ssh -L 9120:PATH) needs no token, so a request with a name of another site must get no answer.
func TestAnotherSitesNameControlledAForwardedSocket(t *testing.T) {
	f := newFakeHinit(coderGateway())
	for _, o := range []Options{{Hinit: f}, {Hinit: f, Token: testToken}} {
		s := startTestSite(t, o)
		for _, method := range []string{"GET", "POST"} {
			if code, _ := s.request(method, "/service/gateway-coder/stop", url.Values{}, "By-Socket", "1", "Host", "evil.example:9120"); code != http.StatusMisdirectedRequest {
				t.Errorf("%s for the name of another site is answered with %d", method, code)
			}
		}
	}
	if got := f.orders(); len(got) != 0 {
		t.Errorf("hinit was told %q", got)
	}
}

func TestAFormCountsFromItsOwnPageAlone(t *testing.T) {
	f := newFakeHinit(coderGateway())
	s := startTestSite(t, Options{Hinit: f, Token: testToken})
	if code, text := s.request("GET", "/", nil); code != http.StatusSeeOther || !strings.HasSuffix(text, "/login") {
		t.Errorf("without the token: %d %s", code, text)
	}
	for _, path := range []string{"/live", "/events", "/service/gateway-coder", "/service/gateway-coder/follow"} {
		if code, _ := s.request("GET", path, nil, "Accept", "*/*"); code != http.StatusUnauthorized {
			t.Errorf("%s without the token: %d", path, code)
		}
	}
	if code, _ := s.request("POST", "/login", url.Values{"token": {"wrong"}}); code != http.StatusForbidden {
		t.Errorf("a wrong token: %d", code)
	}
	if code, _ := s.request("POST", "/login", url.Values{"token": {testToken}}, "Sec-Fetch-Site", "cross-site"); code != http.StatusForbidden {
		t.Errorf("the token from another site: %d", code)
	}
	if code, text := s.request("POST", "/login", url.Values{"token": {testToken}}); code != http.StatusSeeOther {
		t.Fatalf("the token: %d %s", code, text)
	}
	const path = "/service/gateway-coder/restart"
	bad := func(what string, header ...string) {
		t.Helper()
		if code, _ := s.request("POST", path, url.Values{}, header...); code != http.StatusForbidden {
			t.Errorf("%s: %d", what, code)
		}
	}
	bad("another site", "Sec-Fetch-Site", "cross-site")
	bad("another port of this machine", "Sec-Fetch-Site", "same-site", "Origin", "http://127.0.0.1:1")
	bad("another site in an old browser", "Sec-Fetch-Site", "", "Origin", "https://evil.example")
	bad("a frame of another site in an old browser", "Sec-Fetch-Site", "", "Origin", "null")
	bad("a browser that names no origin", "Sec-Fetch-Site", "")
	bad("a page without TLS in front of a page with TLS", "Sec-Fetch-Site", "", "Origin", s.url, "X-Forwarded-Proto", "https")
	session := s.jar[sessionCookie]
	for what, value := range map[string]string{
		"a session of long ago": "1." + session[strings.Index(session, ".")+1:], "no session": "", "a session for ever": "99999999999.00",
	} {
		s.jar[sessionCookie] = value
		bad(what)
	}
	s.jar[sessionCookie] = session
	if got := f.orders(); len(got) != 0 {
		t.Errorf("hinit was told %q", got)
	}
	if code, text := s.request("POST", path, url.Values{}, "Sec-Fetch-Site", "", "Origin", s.url); code != http.StatusSeeOther {
		t.Errorf("the form: %d %s", code, text)
	}
	if code, _ := s.request("POST", "/service/gateway-coder/shell", url.Values{}); code != http.StatusNotFound {
		t.Errorf("an invented command: %d", code)
	}
	s.jar = map[string]string{}
	if code, _ := s.request("POST", path, url.Values{}, "Authorization", "Bearer "+testToken); code != http.StatusSeeOther {
		t.Errorf("a program with the token: %d", code)
	}
}

func TestAProxysPath(t *testing.T) {
	s := startTestSite(t, Options{Hinit: newFakeHinit(coderGateway()), Base: "/ops/hinit"})
	for _, path := range []string{"/ops/hinit/", "/"} { // a proxy may keep the prefix of the path or remove it
		code, page := s.request("GET", path, nil)
		if code != http.StatusOK || !strings.Contains(page, `href="/ops/hinit/service/gateway-coder"`) || strings.Contains(page, `="/static`) || strings.Contains(page, `="/live`) {
			t.Errorf("%s: %d\n%s", path, code, page)
		}
	}
	if code, _ := s.request("GET", "/ops/hinit/static/app.js", nil); code != http.StatusOK {
		t.Errorf("the script: %d", code)
	}
	if code, text := s.request("GET", "/ops/hinit", nil); code != http.StatusFound || !strings.HasSuffix(text, "/ops/hinit/") {
		t.Errorf("without the last slash: %d %s", code, text)
	}
}

func TestAHinitThatIsDownSlowOrLies(t *testing.T) {
	f := newFakeHinit(coderGateway())
	s := startTestSite(t, Options{Hinit: f})
	if _, page := s.request("GET", "/", nil); !strings.Contains(page, "gateway-coder") {
		t.Fatal(page)
	}
	old := func() {
		s.hub.mu.Lock()
		s.hub.statusStoredAt = time.Time{}
		s.hub.mu.Unlock()
	}
	f.change(func() { f.fault = errors.New("cannot get the status: <b>no hinit listens</b>") })
	old()
	code, page := s.request("GET", "/", nil)
	if code != http.StatusOK || !strings.Contains(page, "no hinit listens") || !strings.Contains(page, "What is below is old") || !strings.Contains(page, "gateway-coder") {
		t.Errorf("down: %d\n%s", code, page)
	}
	f.change(func() { f.fault, f.wrongOrderReply = nil, true })
	old()
	if _, page := s.request("GET", "/", nil); !strings.Contains(page, "does not answer as hinit does") {
		t.Errorf("lying: %s", page)
	}
	f.change(func() {
		f.wrongOrderReply, f.services = false, nil
		for i := range 3 * maxRows {
			f.services = append(f.services, client.Service{Name: fmt.Sprint("s", i/2), State: "made up", Restarts: -1})
		}
	})
	old()
	if _, page := s.request("GET", "/", nil); strings.Count(page, "<tr data-name") != maxRows {
		t.Errorf("%d rows of a hinit with endless services", strings.Count(page, "<tr data-name"))
	}
	s.hub.statusTimeout = time.Second
	f.change(func() { f.hangs = true })
	old()
	begin := time.Now()
	if code, _ := s.request("GET", "/", nil); code != http.StatusOK || time.Since(begin) > testkit.Patience/4 {
		t.Errorf("hanging: %d after %v", code, time.Since(begin))
	}
}

// openSlowReader connects a client that sends the request and never reads the answer.
func openSlowReader(t *testing.T, s *testSite, request string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.(*net.TCPConn).SetReadBuffer(4096)
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	return conn
}

const liveRequest = "GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n"

// hugeServices returns services whose rows are more than the kernel takes for a client that doesn't read.
func hugeServices(restarts int) (list []client.Service) {
	for k := range 300 {
		list = append(list, client.Service{Name: fmt.Sprint("s", k), State: client.StateUp, Problem: strings.Repeat("x", 300), Restarts: restarts})
	}
	return list
}

// Beside a thousand connections that read nothing or never complete their request, other clients must be served normally.
func TestAThousandSlowReaders(t *testing.T) {
	f := newFakeHinit()
	s := startTestSite(t, Options{Hinit: f})
	s.requests.rate, s.requests.burst, s.writeTimeout = 1e6, 1e6, 5*testkit.Patience
	for i := range 1500 {
		request := liveRequest
		if i%3 == 0 {
			request = request[:20]
		}
		openSlowReader(t, s, request)
	}
	testkit.Until(t, "a thousand read", func() bool { return s.streams.openConnections() == 1000 })
	for i := range 20 { // each connection requests a megabyte and never reads it
		f.change(func() { f.services = hugeServices(i) })
		code, _ := s.request("GET", "/", nil)
		// An answer that waited for the slow readers would come when they are disconnected.
		if slow := s.streams.openConnections(); code != http.StatusOK || slow != 1000 {
			t.Fatalf("another reader: %d beside %d slow ones", code, slow)
		}
	}
}

// A client that reads no more must be disconnected.
func TestAReaderThatStopsIsCutOff(t *testing.T) {
	f := newFakeHinit()
	s := startTestSite(t, Options{Hinit: f})
	s.requests.rate, s.requests.burst, s.writeTimeout = 1e6, 1e6, 3*time.Second
	for range 50 {
		conn := openSlowReader(t, s, liveRequest)
		for text := make([]byte, 0, 4096); !strings.Contains(string(text), heartbeat); {
			n, err := conn.Read(text[len(text):cap(text)])
			if err != nil {
				t.Fatalf("after %q: %v", text, err)
			}
			text = text[:len(text)+n]
		}
	}
	f.change(func() { f.services = hugeServices(0) })
	testkit.Until(t, "all are cut off", func() bool { return s.streams.openConnections() == 0 })
}

func TestALiveReaderHearsOfAChange(t *testing.T) {
	f := newFakeHinit(coderGateway())
	s := startTestSite(t, Options{Hinit: f})
	r, err := http.NewRequestWithContext(t.Context(), "GET", s.url+"/live", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	next := func(has string) {
		t.Helper()
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), "data:") && strings.Contains(lines.Text(), has) {
				return
			}
		}
		t.Fatalf("the stream ended before %q: %v", has, lines.Err())
	}
	next("gateway-coder")
	f.change(func() { f.services[0].State = client.StateBackoff })
	next("backoff")
	f.change(func() { f.services = append(f.services, client.Service{Name: "new", State: client.StateDown}) })
	next(`"order":["gateway-coder","new"]`)
	f.change(func() { f.fault = errors.New("gone away") })
	next("gone away")
	f.change(func() { f.fault = nil })
	next("head")
}

func TestOutagesAreWhatWasNotWanted(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	code := 1
	event := func(s int, from, to string) client.Event {
		return client.Event{At: at(s), Service: "a", FromState: from, ToState: to}
	}
	events := []client.Event{
		event(100, "starting", "up"),
		{At: at(200), Service: "a", Exit: &client.Exit{Code: &code, Cause: "crash"}},
		event(200, "up", "backoff"), event(260, "backoff", "starting"), event(260, "starting", "up"),
		event(300, "up", "stopping"), event(301, "stopping", "down"), event(400, "down", "starting"), event(400, "starting", "up"),
		event(900, "up", "parked"),
	}
	bars, outages := timeline([]client.Service{{Name: "a", State: "parked"}, {Name: "b", State: "up", Since: at(500)}}, events, at(0), at(1000))
	if len(outages) != 2 || outages[1].Duration() != time.Minute || outages[1].Cause != "code 1 (crash)" || !outages[0].Ongoing || outages[0].Duration() != 100*time.Second {
		t.Errorf("outages %+v", outages)
	}
	got := ""
	for _, seg := range bars[0].Segments {
		got += fmt.Sprintf("%s %d+%d, ", seg.Class, seg.X, seg.Width)
	}
	if want := "wait 0+100, good 100+100, bad 200+60, good 260+40, wait 300+1, off 301+99, good 400+500, bad 900+100, "; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if len(bars[1].Segments) != 1 || bars[1].Segments[0].X != 500 || bars[0].Outages != 2 {
		t.Errorf("bars %+v", bars)
	}
}

func (p *connectionLimit) openConnections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open
}
