package web

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestWrongTokensDoNotLockTheOwnerOut: others have guessed until they are told to wait, and the right token still opens page and metrics.
func TestWrongTokensDoNotLockTheOwnerOut(t *testing.T) {
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("# EOF\n")) })
	s := serve(t, Options{Hinit: newFake(coder()), Token: token, Metrics: metrics})
	got := map[int]int{}
	for range 30 {
		code, _ := s.do("GET", "/metrics", nil, "Authorization", "Bearer wrong", "Accept", "text/plain")
		got[code]++
	}
	if got[http.StatusUnauthorized] < 10 || got[http.StatusTooManyRequests] < 10 {
		t.Errorf("wrong tokens are answered with %v", got)
	}
	for range 20 {
		if code, text := s.do("GET", "/metrics", nil, "Authorization", "Bearer "+token); code != http.StatusOK {
			t.Fatalf("the right token is answered with %d: %s", code, text)
		}
	}
	other := httptest.NewRequest("GET", "/metrics", nil)
	other.Header.Set("Authorization", "Bearer wrong")
	w := httptest.NewRecorder()
	s.ServeHTTP(w, other) // from 192.0.2.1, which has not guessed yet
	if w.Code == http.StatusTooManyRequests {
		t.Error("another address has to wait for the guesses of this machine")
	}
}

// TestTheStreamsOfOneReaderLeaveRoomForOthers: one address has many, and can't have all.
func TestTheStreamsOfOneReaderLeaveRoomForOthers(t *testing.T) {
	p := newPlaces(mostStreams)
	one := 0
	for p.take(remoteOf("127.0.0.1:1")) && one <= mostStreams {
		one++
	}
	if one != mostStreams/2 {
		t.Errorf("one address has %d of %d", one, mostStreams)
	}
	if p.take(remoteOf("127.7.7.7:2")) || p.take(remoteOf("[::1]:3")) || p.take(remoteOf("[::ffff:127.0.0.1]:3")) {
		t.Error("another address of this machine counts as another reader")
	}
	v6 := remoteOf("[2001:db8::1]:1")
	if v6 != remoteOf("[2001:db8::ffff:2]:1") || v6 == remoteOf("[2001:db8:0:1::1]:1") {
		t.Errorf("the key of a network is %q", v6)
	}
	if !p.take(v6) {
		t.Error("another address finds no place")
	}
	for p.take("10.0.0.1") {
	}
	if p.take("10.0.0.2") || !p.take(owner) {
		t.Error("all places are taken, and only the owner finds one")
	}
	p.leave("10.0.0.1")
	if !p.take("10.0.0.2") {
		t.Error("a place that is left is not taken again")
	}
}

// TestNamesOfThisMachineHaveNoCase: localhost is localhost however it is written.
func TestNamesOfThisMachineHaveNoCase(t *testing.T) {
	s := serve(t, Options{Hinit: newFake(coder()), Hosts: []string{"NAS.lan."}})
	for _, host := range []string{"localhost", "LOCALHOST", "localhost.", "LocalHost.:80", "nas.LAN", "127.0.0.1", "[::1]:9"} {
		if code, _ := s.do("GET", "/", nil, "Host", host); code != http.StatusOK {
			t.Errorf("%q is answered with %d", host, code)
		}
	}
	for _, host := range []string{"localhost.evil.example", "evil.example", "nas.lan.evil", "localhost..", ""} {
		if s.knownHost(&http.Request{Host: host}) {
			t.Errorf("%q is taken for this machine", host)
		}
	}
}
