package web

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/fsutil"
	"hinit/internal/procusage"
	"hinit/internal/testkit"
)

// The right token must open the page and the metrics even while other clients must wait after wrong guesses.
func TestWrongTokensDoNotLockTheOwnerOut(t *testing.T) {
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("# EOF\n")) })
	s := startTestSite(t, Options{Hinit: newFakeHinit(coderGateway()), Token: testToken, Metrics: metrics})
	got := map[int]int{}
	for range 30 {
		code, _ := s.request("GET", "/metrics", nil, "Authorization", "Bearer wrong", "Accept", "text/plain")
		got[code]++
	}
	if got[http.StatusUnauthorized] < 10 || got[http.StatusTooManyRequests] < 10 {
		t.Errorf("wrong tokens are answered with %v", got)
	}
	for range 20 {
		if code, text := s.request("GET", "/metrics", nil, "Authorization", "Bearer "+testToken); code != http.StatusOK {
			t.Fatalf("the right token is answered with %d: %s", code, text)
		}
	}
	other := httptest.NewRequest("GET", "/metrics", nil)
	other.Header.Set("Authorization", "Bearer wrong")
	w := httptest.NewRecorder()
	s.ServeHTTP(w, other) // the request comes from 192.0.2.1, an address without guesses
	if w.Code == http.StatusTooManyRequests {
		t.Error("another address has to wait for the guesses of this machine")
	}
}

// A single address can open at most half of all streams (maxStreams/2), so that the other half is free for other readers.
func TestTheStreamsOfOneReaderLeaveRoomForOthers(t *testing.T) {
	p := newConnectionLimit(maxStreams)
	one := 0
	for p.acquire(addressKey("127.0.0.1:1")) && one <= maxStreams {
		one++
	}
	if one != maxStreams/2 {
		t.Errorf("one address has %d of %d", one, maxStreams)
	}
	if p.acquire(addressKey("127.7.7.7:2")) || p.acquire(addressKey("[::1]:3")) || p.acquire(addressKey("[::ffff:127.0.0.1]:3")) {
		t.Error("another address of this machine counts as another reader")
	}
	v6 := addressKey("[2001:db8::1]:1")
	if v6 != addressKey("[2001:db8::ffff:2]:1") || v6 == addressKey("[2001:db8:0:1::1]:1") {
		t.Errorf("the key of a network is %q", v6)
	}
	if !p.acquire(v6) {
		t.Error("another address finds no place")
	}
	for p.acquire("10.0.0.1") {
	}
	if p.acquire("10.0.0.2") || !p.acquire(ownerLimitKey) {
		t.Error("all places are taken, and only the owner finds one")
	}
	p.release("10.0.0.1")
	if !p.acquire("10.0.0.2") {
		t.Error("a place that is left is not taken again")
	}
}

// The comparison of the Host header ignores case: LocalHost means localhost.
func TestNamesOfThisMachineHaveNoCase(t *testing.T) {
	s := startTestSite(t, Options{Hinit: newFakeHinit(coderGateway()), AllowedHosts: []string{"NAS.lan."}})
	for _, host := range []string{"localhost", "LOCALHOST", "localhost.", "LocalHost.:80", "nas.LAN", "127.0.0.1", "[::1]:9"} {
		if code, _ := s.request("GET", "/", nil, "Host", host); code != http.StatusOK {
			t.Errorf("%q is answered with %d", host, code)
		}
	}
	for _, host := range []string{"localhost.evil.example", "evil.example", "nas.lan.evil", "localhost..", ""} {
		if s.isKnownHost(&http.Request{Host: host}) {
			t.Errorf("%q is taken for this machine", host)
		}
	}
}

// statusWithHistory returns a status with many services, each with a history.
func statusWithHistory(s *Server, n int) (list []client.Service) {
	used := usageSample{byName: make(map[string]procusage.Usage), cpuKnown: true, lines: make(map[string][2]string)}
	for i := range n {
		v := coderGateway()
		v.Name, v.Profile, v.PID = fmt.Sprintf("gateway-customer-%03d", i), fmt.Sprintf("customer-%03d", i), 100+i
		values := make([]float32, graphPoints)
		for k := range values {
			values[k] = float32((k*(i+3) + k*k) % 11)
		}
		used.byName[v.Name] = procusage.Usage{CPU: float64(i) / 100, Memory: uint64(i) * 1e6, Processes: 3}
		used.lines[v.Name] = [2]string{sparklinePath(values, 1), sparklinePath(values[:graphPoints/2], 1)}
		list = append(list, v)
	}
	m := &s.hub.meter
	m.mu.Lock()
	m.proc, m.at, m.newest = func(client.Init) string { return "" }, time.Now().Add(time.Hour), used
	m.mu.Unlock()
	return list
}

func TestThePageOf500ServicesIsSmall(t *testing.T) {
	f := newFakeHinit()
	s := startTestSite(t, Options{Hinit: f})
	list := statusWithHistory(s.Server, 500)
	f.change(func() { f.services = list })
	testkit.Until(t, "all are shown", func() bool {
		_, page := s.request("GET", "/", nil)
		return strings.Count(page, "<path") == 1000+1 && len(page) < 300_000 // 1000 in the services, and one in the logo
	})
}

// BenchmarkAStatusOf500 measures the cost of one second of a live page with few changes.
func BenchmarkAStatusOf500(b *testing.B) {
	s, err := New(Options{Hinit: newFakeHinit(), Metrics: http.NotFoundHandler(), LogReader: func(client.Init) (*fsutil.Actor, error) { return fsutil.ProcessActor(), nil }})
	if err != nil {
		b.Fatal(err)
	}
	st := client.Status{Version: client.StatusVersion, Init: runningInit, Services: statusWithHistory(s, 500)}
	for b.Loop() {
		st.Services[b.N%500].Restarts++
		s.hub.setStatus(st, nil)
	}
}

// The page must show, as the status does, which parts of a profile's isolation are in force.
func TestThePageSaysWhatIsolatesAProfile(t *testing.T) {
	for want, i := range map[string]*client.Isolation{
		"<dd>user (uid 20001, Landlock ABI 7, seccomp)</dd>": {Mode: "user", Restrictions: []string{"uid 20001", "Landlock ABI 7", "seccomp"}},
		"files, NOT IN FORCE: its process began without it":  {Mode: "files"},
		"": nil,
	} {
		gateway := coderGateway()
		gateway.PID, gateway.Isolation = 4711, i
		_, page := startTestSite(t, Options{Hinit: newFakeHinit(gateway)}).request("GET", "/service/"+gateway.Name, nil)
		if !strings.Contains(page, want) || strings.Contains(page, "<dt>Isolation</dt>") != (i != nil) {
			t.Errorf("the page does not say %q:\n%s", want, page)
		}
	}
}

// An open page must get no news after the end of its session.
func TestAPageWasKeptUpToDateAfterItsSession(t *testing.T) {
	s := startTestSite(t, Options{Hinit: newFakeHinit(coderGateway()), Token: testToken})
	s.heartbeatPause = 100 * time.Millisecond
	until := strconv.FormatInt(time.Now().Add(2*time.Second).Unix(), 10)
	s.jar[sessionCookie] = until + "." + sign(s.sessionKey, until)
	ended := make(chan int, 1)
	go func() {
		code, _ := s.request("GET", "/live", nil)
		ended <- code
	}()
	select {
	case code := <-ended:
		if code != http.StatusOK {
			t.Errorf("the answer is %d", code)
		}
	case <-time.After(testkit.Patience):
		t.Error("the stream has not ended")
	}
}
