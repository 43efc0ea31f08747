package forward

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"hinit/client"
	"hinit/internal/fsutil"
	"hinit/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.LimitParallel(8)
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("hinit/logrotate.(*watching).run"), goleak.IgnoreAnyFunction("github.com/fsnotify/fsnotify.(*inotify).readEvents"))
}

// fakeHinit is a hinit with one service, whose log the test writes.
type fakeHinit struct {
	statusRequests atomic.Int32
	booting        atomic.Bool // whether gateway-coder does not exist yet
	dir            string
	otherServices  []client.Service
	mu             sync.Mutex
	events         []client.Event
}

func (f *fakeHinit) Status(context.Context, ...string) (client.Status, error) {
	defer f.statusRequests.Add(1)
	services := append([]client.Service{
		{Name: "gateway-coder", Profile: "coder", Log: f.dir + "/current"}, {Name: "hinit-forward", Log: f.dir + "/own/current"},
	}, f.otherServices...)
	if f.booting.Load() {
		services = services[1:]
	}
	return client.Status{Version: 1, Init: client.Init{StartedAt: time.Unix(1, 0)}, Services: services}, nil
}

func (f *fakeHinit) Events(_ context.Context, o client.EventOptions, fn func(client.Event) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.events {
		if e.Seq > o.AfterSeq {
			if err := fn(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// fakeSink stores the records from its method send, unless the test makes it fail.
type fakeSink struct {
	mu      sync.Mutex
	records []Record
	fail    func(n int, records []Record) error // result of the n-th call, counted from 0
	calls   int
}

func (s *fakeSink) send(_ context.Context, records []Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if s.fail != nil {
		if err := s.fail(s.calls, records); err != nil {
			return err
		}
	}
	s.records = append(s.records, records...)
	return nil
}

func (s *fakeSink) texts(kind string) (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.records {
		if r.Kind == kind {
			out = append(out, r.Text)
		}
	}
	return out
}

type testLog struct {
	*testing.T
	dir                     string
	linesWritten, rotations int
}

func (l *testLog) writeLines(count int) {
	l.Helper()
	for range count {
		l.linesWritten++
		l.writeText(fmt.Sprintf("line %d", l.linesWritten))
	}
}

func (l *testLog) writeText(text string) {
	l.Helper()
	f, err := os.OpenFile(l.dir+"/current", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		l.Fatal(err)
	}
	defer f.Close()
	if _, err := fmt.Fprintf(f, "%s  %s\n", time.Now().Format("2006-01-02 15:04:05.000000000"), text); err != nil {
		l.Fatal(err)
	}
}

func (l *testLog) rotate() string {
	l.Helper()
	l.rotations++
	name := fmt.Sprintf("%s/@400000006b00e1dd%08x.s", l.dir, l.rotations)
	if err := os.Rename(l.dir+"/current", name); err != nil {
		l.Fatal(err)
	}
	return name
}

func (l *testLog) compress(name string) {
	l.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		l.Fatal(err)
	}
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(text)
	_ = w.Close()
	if err := errors.Join(os.WriteFile(name+".gz", b.Bytes(), 0o600), os.Remove(name)); err != nil {
		l.Fatal(err)
	}
}

func (l *testLog) allLines() (out []string) {
	for i := range l.linesWritten {
		out = append(out, fmt.Sprintf("line %d", i+1))
	}
	return out
}

func selfActor(client.Init) (*fsutil.Actor, error) { return fsutil.ProcessActor(), nil }

// startForwarder returns a forwarder that runs until the call of stop.
func startForwarder(t *testing.T, f *fakeHinit, s Sink, change func(*Forwarder)) (stop func() *Forwarder) {
	t.Helper()
	w := &Forwarder{
		Hinit: f, Sink: s, LogReader: selfActor, PositionsFile: filepath.Join(f.dir, "state.json"), ExcludedServices: []string{"hinit-forward"}, MaskSecrets: true, Log: slog.New(slog.DiscardHandler),
		BatchTime: time.Millisecond,
	}
	if change != nil {
		change(w)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	var once sync.Once
	stop = func() *Forwarder {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		return w
	}
	t.Cleanup(func() { stop() })
	return stop
}

func newLog(t *testing.T) (*testLog, *fakeHinit) {
	t.Helper()
	dir := t.TempDir()
	return &testLog{T: t, dir: dir}, &fakeHinit{dir: dir}
}

// newLogWithSentLine makes two logs, and lets a forwarder send the first line of one.
func newLogWithSentLine(t *testing.T) (*testLog, *fakeHinit, *fakeSink) {
	t.Helper()
	l, f := newLog(t)
	f.otherServices = []client.Service{{Name: "gateway-writer", Profile: "writer", Log: filepath.Dir(f.dir) + "/writer/current"}}
	s := &fakeSink{}
	l.writeLines(1)
	stop := startForwarder(t, f, s.send, nil)
	testkit.Until(t, "the first line", func() bool { return len(s.texts(KindLog)) == 1 })
	stop()
	return l, f, s
}

func TestLinesComeInOrderAcrossEverything(t *testing.T) {
	l, f := newLog(t)
	s := &fakeSink{}
	l.writeLines(100)
	l.compress(l.rotate())
	l.writeLines(100)
	l.rotate()
	l.writeLines(50)
	has := func() {
		t.Helper()
		testkit.Until(t, fmt.Sprintf("%d lines", l.linesWritten), func() bool { return len(s.texts(KindLog)) >= l.linesWritten })
		if got := s.texts(KindLog); !slices.Equal(got, l.allLines()) {
			t.Fatalf("got %d lines of %d: %q", len(got), l.linesWritten, got)
		}
	}
	stop := startForwarder(t, f, s.send, nil)
	has()
	l.writeLines(10)
	has()
	l.rotate()
	l.writeLines(10)
	has()
	stop()
	l.writeLines(10)
	one := l.rotate()
	l.writeLines(10)
	two := l.rotate()
	l.compress(one)
	l.compress(two)
	l.writeLines(10)
	stop = startForwarder(t, f, s.send, nil)
	has()
	l.rotate()
	stop()
	stop = startForwarder(t, f, s.send, nil)
	l.writeLines(5)
	has()
	if w := stop(); w.Counts().Gaps != 0 {
		t.Errorf("%d gaps", w.Counts().Gaps)
	}
	if got := s.texts(KindGap); len(got) != 0 {
		t.Errorf("gaps %q", got)
	}
}

// A forwarder of 2000 profiles must be able to read its own file of positions. Otherwise it ends at each later start.
func TestAForwarderOfManyProfilesStartsAgain(t *testing.T) {
	t.Parallel()
	l, f := newLog(t)
	for n := range 2000 { // as many profiles as hinit supervises by default
		name := fmt.Sprintf("profile-%04d", n)
		f.otherServices = append(f.otherServices, client.Service{Name: "gateway-" + name, Profile: name, Log: filepath.Join(filepath.Dir(f.dir), name, "current")})
	}
	s := &fakeSink{}
	for range 2 {
		l.writeLines(1)
		stop := startForwarder(t, f, s.send, nil)
		testkit.Until(t, "the next line", func() bool { return len(s.texts(KindLog)) == l.linesWritten })
		stop()
	}
	if got := s.texts(KindLog); !slices.Equal(got, l.allLines()) {
		t.Errorf("got %q", got)
	}
}

// A forwarder must continue from the positions in a state file of another version.
func TestAForwarderGoesOnAtWrittenPositions(t *testing.T) {
	_, f := newLog(t)
	text := "2026-01-02 03:04:05.123456789  one\n2026-01-02 03:04:05.123456789  two\n2026-01-02 03:04:06.000000000  three\n"
	at := time.Date(2026, 1, 2, 3, 4, 5, 123456789, time.Local).Format(time.RFC3339Nano)
	state := fmt.Sprintf(`{"logs":{%q:{"at":%q,"same":1},"/nowhere":null},"counts":{"sent":7}}`, f.dir, at)
	for name, content := range map[string]string{"current": text, "state.json": state} {
		if err := os.WriteFile(filepath.Join(f.dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := &fakeSink{}
	stop := startForwarder(t, f, s.send, nil)
	testkit.Until(t, "the lines after the position", func() bool { return len(s.texts(KindLog)) == 2 })
	if got := s.texts(KindLog); got[0] != "two" || got[1] != "three" || stop().Counts().Sent != 9 {
		t.Errorf("sent %q", got)
	}
}

// If a reader ends early while it skips lines that the receiver already has, its position must stay the same. With a wrong
// position, the reader would skip new lines after the files with the old lines have been removed.
func TestNoLineIsSkippedAfterAReadingThatEndedEarly(t *testing.T) {
	l, f := newLog(t)
	l.writeLines(3)
	w := &Forwarder{Hinit: f, Log: slog.New(slog.DiscardHandler), records: make(chan Record)}
	r := &logReader{Forwarder: w, logFile: &logFile{}, log: w.Log, position: position{LineTime: time.Unix(1, 0), LinesAtTime: 3}, linesToSkip: 2}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w.readers.Go(func() { r.read(ctx, f.dir, fsutil.ProcessActor()) })
	var got []string
	for range 4 {
		got = append(got, (<-w.records).Text)
	}
	cancel()
	w.readers.Wait()
	if !slices.Equal(got[1:], l.allLines()) {
		t.Errorf("sent %q", got)
	}
}

// If the receiver is down for longer than the rotation keeps files, the forwarder must report the removed lines as a gap.
func TestWhatWasRemovedWhileAReceiverWasDownIsAGap(t *testing.T) {
	l, f := newLog(t)
	down, up := make(chan struct{}), make(chan struct{})
	var receiverEnds atomic.Bool
	s := &fakeSink{fail: func(int, []Record) error {
		if receiverEnds.Swap(false) {
			close(down)
			<-up
		}
		return nil
	}}
	l.writeLines(10)
	stop := startForwarder(t, f, s.send, nil)
	testkit.Until(t, "ten lines", func() bool { return len(s.texts(KindLog)) == 10 })
	receiverEnds.Store(true)
	l.writeLines(1)
	<-down
	removed := ""
	for range 3 {
		l.writeLines(10)
		if removed != "" {
			if err := os.Remove(removed); err != nil {
				t.Fatal(err)
			}
		}
		removed = l.rotate()
	}
	l.writeLines(10)
	close(up)
	testkit.Until(t, "what is left", func() bool { return slices.Contains(s.texts(KindLog), "line 41") })
	if w := stop(); w.Counts().Gaps != 1 || len(s.texts(KindGap)) != 1 {
		t.Errorf("%d gaps, %q", w.Counts().Gaps, s.texts(KindGap))
	}
}

func TestWhatWasRemovedIsAGap(t *testing.T) {
	l, f := newLog(t)
	s := &fakeSink{}
	l.writeLines(10)
	stop := startForwarder(t, f, s.send, nil)
	testkit.Until(t, "ten lines", func() bool { return len(s.texts(KindLog)) == 10 })
	stop()
	l.writeLines(10)
	if err := os.Remove(l.rotate()); err != nil {
		t.Fatal(err)
	}
	l.writeLines(10)
	stop = startForwarder(t, f, s.send, nil)
	testkit.Until(t, "what is left", func() bool { return len(s.texts(KindLog)) == 20 })
	if w := stop(); w.Counts().Gaps != 1 || len(s.texts(KindGap)) != 1 || !slices.Equal(s.texts(KindLog)[10:], l.allLines()[20:]) {
		t.Errorf("%d gaps, %q, lines %q", w.Counts().Gaps, s.texts(KindGap), s.texts(KindLog)[10:])
	}
}

// After the operator excludes a service whose log was sent before, no more of its lines may be sent.
func TestAServiceThatIsLeftOutLaterIsNoLongerSent(t *testing.T) {
	t.Parallel()
	l, f, s := newLogWithSentLine(t)
	l.writeLines(1)
	f.events = []client.Event{{Seq: 1, At: time.Now(), Reason: "boot"}, {Seq: 2, At: time.Now(), Reason: "later"}}
	stop := startForwarder(t, f, s.send, func(w *Forwarder) {
		w.ExcludedServices, w.BatchTime = []string{"gateway-coder", "hinit-forward"}, time.Second
	})
	testkit.Until(t, "the events", func() bool { return len(s.texts(KindEvent)) == 2 })
	stop()
	if got := s.texts(KindLog); len(got) != 1 {
		t.Errorf("sent %q", got)
	}
}

// An excluded service must not be sent, even if hinit did not know it when the forwarder found its log. The forwarder then
// reads the log under the name of its directory at first.
func TestAServiceThatIsLeftOutAndComesLateIsNoLongerSent(t *testing.T) {
	t.Parallel()
	l, f, s := newLogWithSentLine(t)
	f.booting.Store(true)
	stop := startForwarder(t, f, s.send, func(w *Forwarder) { w.ExcludedServices = []string{"gateway-coder", "hinit-forward"} })
	l.writeLines(1)
	testkit.Until(t, "a line under the name of the directory", func() bool { return len(s.texts(KindLog)) == 2 })
	f.booting.Store(false)
	asked := f.statusRequests.Load()
	testkit.Until(t, "hinit is asked again, and once more", func() bool { return f.statusRequests.Load() >= asked+2 })
	l.writeLines(1)
	asked = f.statusRequests.Load()
	testkit.Until(t, "the forwarder has had time to read", func() bool { return f.statusRequests.Load() > asked })
	stop()
	if got := s.texts(KindLog); len(got) != 2 {
		t.Errorf("sent %q", got)
	}
}

func TestAFailingReceiverGetsEverythingInTheEnd(t *testing.T) {
	t.Parallel()
	l, f := newLog(t)
	f.events = []client.Event{{Seq: 1, At: time.Now(), Service: "gateway-coder", FromState: "up", ToState: "backoff", Reason: "crash"}, {Seq: 2, At: time.Now(), Reason: "boot"}}
	s := &fakeSink{fail: func(n int, _ []Record) error {
		if n%3 != 0 {
			return errors.New("not now")
		}
		return nil
	}}
	l.writeLines(100)
	stop := startForwarder(t, f, s.send, nil)
	testkit.Until(t, "all lines", func() bool { return len(s.texts(KindLog)) == 100 })
	w := stop()
	if got := s.texts(KindEvent); len(got) != 2 || got[0] != "up -> backoff: crash" {
		t.Errorf("events %q", got)
	}
	if w.Counts().Failures < 2 || w.Counts().Sent != 102 {
		t.Errorf("counts %+v", w.Counts())
	}
}

func TestARefusedRecordIsLeftOutAlone(t *testing.T) {
	l, f := newLog(t)
	s := &fakeSink{fail: func(_ int, records []Record) error {
		for _, r := range records {
			if r.Text == "line 37" {
				return RefusedError{error: errors.New("poison")}
			}
		}
		return nil
	}}
	l.writeLines(100)
	stop := startForwarder(t, f, s.send, nil)
	testkit.Until(t, "the others", func() bool { return len(s.texts(KindLog)) == 99 })
	if w := stop(); w.Counts().RefusedRecords != 1 || slices.Contains(s.texts(KindLog), "line 37") {
		t.Errorf("%+v", w.Counts())
	}
}

// A collector that refused every line filled the container log: each line became a message of up to 4 KB.
func TestACollectorThatRefusesAllDoesNotFillTheLog(t *testing.T) {
	l, f := newLog(t)
	s := &fakeSink{fail: func(int, []Record) error { return RefusedError{error: errors.New("no such tenant")} }}
	l.writeLines(300)
	said := make(chan string, 1000)
	began := time.Now()
	stop := startForwarder(t, f, s.send, func(w *Forwarder) { w.Log = slog.New(slog.NewTextHandler(lineChan(said), nil)) })
	testkit.Until(t, "the refusals", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.calls > 300
	})
	refused := stop().Counts().RefusedRecords
	if most := 1 + int(time.Since(began)/time.Second); len(said) < 1 || len(said) > most || refused < 150 {
		t.Errorf("%d messages about %d refused records", len(said), refused)
	}
}

func TestSecretsAreHidden(t *testing.T) {
	_, f := newLog(t)
	key := "sk-" + "ant-api03-" + strings.Repeat("abcd1234", 12)
	text := ""
	for _, line := range []string{"key " + key + " \xff", "-----BEGIN PRIVATE KEY-----", strings.Repeat("aB3/", 16), "-----END PRIVATE KEY-----"} {
		text += "2026-01-02 03:04:05.123456789  " + line + "\n"
	}
	if err := os.WriteFile(f.dir+"/current", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &fakeSink{}
	startForwarder(t, f, s.send, nil)
	testkit.Until(t, "the lines", func() bool { return len(s.texts(KindLog)) == 4 })
	if got := s.texts(KindLog); got[0] != "key *** \uFFFD" || got[2] != "***" {
		t.Errorf("got %q", got)
	}
}

func TestALinkIsNotFollowed(t *testing.T) {
	t.Parallel()
	l, f := newLog(t)
	if err := os.WriteFile(f.dir+"/target", []byte("2026-01-02 03:04:05.123456789  precious\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("target", f.dir+"/current"); err != nil {
		t.Fatal(err)
	}
	s := &fakeSink{}
	said := make(chan string, 100)
	startForwarder(t, f, s.send, func(w *Forwarder) { w.Log = slog.New(slog.NewTextHandler(lineChan(said), nil)) })
	if text := <-said; !strings.Contains(text, "symbolic link refused") {
		t.Errorf("it says %q", text)
	}
	if err := os.Remove(f.dir + "/current"); err != nil {
		t.Fatal(err)
	}
	l.writeLines(1)
	testkit.Until(t, "the line of a file", func() bool { return len(s.texts(KindLog)) > 0 })
	if got := s.texts(KindLog)[0]; got != "line 1" {
		t.Errorf("it has sent %q", got)
	}
}

// lineChan sends each logged line to a channel.
type lineChan chan string

func (s lineChan) Write(p []byte) (int, error) {
	s <- string(p)
	return len(p), nil
}

// Real HTTP servers fail, hang, or cut connections. No line may be lost.
func TestReceiversThatFailHangAndCut(t *testing.T) {
	t.Parallel()
	for kind, path := range map[string]string{"otlp+": "/v1/logs", "loki+": "/loki/api/v1/push"} {
		l, f := newLog(t)
		var mu sync.Mutex
		var got []string
		n := 0
		hang := make(chan struct{})
		line := regexp.MustCompile(`line \d+`)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			mu.Lock()
			n++
			call := n
			mu.Unlock()
			if r.URL.Path != path || r.Header.Get("Authorization") != "Bearer x" || !json.Valid(body) {
				t.Errorf("%s %s", r.URL, body)
			}
			switch call {
			case 1:
				w.WriteHeader(http.StatusInternalServerError)
				return
			case 2: // the receiver has stored the records, but its answer is lost
				mu.Lock()
				got = append(got, line.FindAllString(string(body), -1)...)
				mu.Unlock()
				conn, _, _ := w.(http.Hijacker).Hijack()
				_ = conn.Close()
				return
			case 3:
				<-hang
				return
			}
			mu.Lock()
			defer mu.Unlock()
			got = append(got, line.FindAllString(string(body), -1)...)
		}))
		s, err := NewSink(kind+server.URL, "Bearer x")
		if err != nil {
			t.Fatal(err)
		}
		l.writeLines(50)
		stop := startForwarder(t, f, s, func(w *Forwarder) { w.Timeout = time.Second })
		count := func() (distinct, all int) {
			mu.Lock()
			defer mu.Unlock()
			seen := map[string]bool{}
			for _, text := range got {
				seen[text] = true
			}
			return len(seen), len(got)
		}
		testkit.Until(t, "all lines, and those twice whose answer was lost", func() bool { d, a := count(); return d == 50 && a > 50 })
		stop()
		close(hang)
		server.Close()
	}
}

func TestSyslogOverAllWays(t *testing.T) {
	form := regexp.MustCompile(`^<30>1 \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z \S+ gateway-coder - log \[hinit@32473 profile="coder"\] line \d+$`)
	send := func(t *testing.T, to string, got func() []string) {
		t.Helper()
		l, f := newLog(t)
		s, err := NewSink(to, "")
		if err != nil {
			t.Fatal(err)
		}
		l.writeLines(30)
		wrote := time.Now()
		stop := startForwarder(t, f, s, nil)
		testkit.Until(t, "thirty messages", func() bool {
			seen := map[string]bool{}
			for _, m := range got() {
				seen[m] = true
			}
			wanted := 0
			for m := range seen {
				if n := 0; form.MatchString(m) {
					if _, err := fmt.Sscanf(m[strings.LastIndex(m, "line "):], "line %d", &n); err == nil && n <= 30 {
						wanted++
					}
				}
			}
			if time.Since(wrote) > 100*time.Millisecond {
				l.writeLines(1) // the forwarder notices a lost connection when it sends the next line
				wrote = time.Now()
			}
			return wanted == 30
		})
		stop()
		for _, m := range got() {
			if !form.MatchString(m) {
				t.Errorf("%q is none", m)
			}
		}
	}
	var mu sync.Mutex
	var all []string
	add := func(m string) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, m)
	}
	got := func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
	packets := func(network, address string) net.PacketConn {
		c, err := net.ListenPacket(network, address)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			b := make([]byte, 64<<10)
			for {
				n, _, err := c.ReadFrom(b)
				if err != nil {
					return
				}
				add(string(b[:n]))
			}
		}()
		return c
	}
	c := packets("udp", "127.0.0.1:0")
	send(t, "syslog+udp://"+c.LocalAddr().String(), got)
	_ = c.Close()
	all = nil
	path := t.TempDir() + "/log"
	c = packets("unixgram", path)
	send(t, "syslog+unix://"+path, got)
	_ = c.Close()
	all = nil

	// The first connection is cut after some bytes. Its lines do not count as sent.
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	ended := make(chan struct{})
	accepted := make(chan net.Conn, 100)
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			conn, err := tcp.Accept()
			if err != nil {
				return
			}
			accepted <- conn
			r := bufio.NewReader(conn)
			for {
				var size int
				if _, err := fmt.Fscanf(r, "%d ", &size); err != nil {
					break
				}
				m := make([]byte, size)
				if _, err := io.ReadFull(r, m); err != nil {
					break
				}
				if i == 0 {
					_ = conn.(*net.TCPConn).SetLinger(0) // this makes Close send a reset
					break
				}
				add(string(m))
			}
			_ = conn.Close()
		}
	}()
	send(t, "syslog+tcp://"+tcp.Addr().String(), got)
	_ = tcp.Close()
	for len(accepted) > 0 {
		_ = (<-accepted).Close()
	}
	<-ended
}

func TestAFileHasALimitAndEndsHalfLines(t *testing.T) {
	path := t.TempDir() + "/out.jsonl"
	if err := os.WriteFile(path, []byte(`{"half`), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		if err := appendToFile(path, 2000, []Record{{Text: fmt.Sprint("line ", i), Service: "a"}}); err != nil {
			t.Fatal(err)
		}
	}
	names, err := filepath.Glob(path + "*")
	if err != nil || len(names) != 1+maxFullFiles {
		t.Errorf("%q, %v", names, err)
	}
	last, err := os.ReadFile(path + ".1")
	if err != nil || len(last) > 3000 {
		t.Errorf("%d bytes, %v", len(last), err)
	}
	for text := range strings.Lines(string(last)) {
		var r map[string]any
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestPlacesThatAreNone(t *testing.T) {
	for _, to := range []string{"", "http://x", "otlp://x", "otlp+ftp://x", "loki+http://", "syslog+udp://x", "syslog+unix:", "file://", "file+x:///y", "\x00"} {
		if _, err := NewSink(to, ""); err == nil || !strings.HasPrefix(err.Error(), "cannot send to ") {
			t.Errorf("%q: %v", to, err)
		}
	}
}

// Lines with equal times can be in two files. If rotation has removed the first file, the forwarder must not skip later lines
// in place of the removed lines.
func TestLaterLinesWereSkippedInPlaceOfRemovedOnes(t *testing.T) {
	_, f := newLog(t)
	text := "2026-01-02 03:04:05.123456789  sent\n"
	for i := range 3 {
		text += fmt.Sprintf("2026-01-02 03:04:06.00000000%d  line %d\n", i, i)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 123456789, time.Local).Format(time.RFC3339Nano)
	state := fmt.Sprintf(`{"logs":{%q:{"at":%q,"same":3}}}`, f.dir, at)
	for name, content := range map[string]string{"current": text, "state.json": state} {
		if err := os.WriteFile(filepath.Join(f.dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := &fakeSink{}
	startForwarder(t, f, s.send, nil)
	testkit.Until(t, "the later lines", func() bool { return slices.Equal(s.texts(KindLog), []string{"line 0", "line 1", "line 2"}) })
}

// A full disk must not end the forwarder. If it ended when it can't save its positions, it would send the same lines after each
// restart, and never later ones.
func TestAFullDiskEndedTheForwarder(t *testing.T) {
	l, f := newLog(t)
	dir := filepath.Join(t.TempDir(), "positions")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := &fakeSink{}
	said := make(chan string, 100)
	stop := startForwarder(t, f, s.send, func(w *Forwarder) {
		w.PositionsFile, w.Log = dir+"/state.json", slog.New(slog.NewTextHandler(lineChan(said), nil))
	})
	for n := 1; n <= 3; n++ {
		l.writeLines(1)
		testkit.Until(t, "the line", func() bool { return len(s.texts(KindLog)) == n })
		switch n {
		case 1: // the file becomes impossible to replace, as on a full disk
			if err := os.Rename(dir, dir+".away"); err != nil {
				t.Fatal(err)
			}
		case 2:
			testkit.Until(t, "the forwarder to say that it cannot save", func() bool { return len(said) > 0 })
			if text := <-said; !strings.Contains(text, "cannot save the positions") {
				t.Errorf("it says %q", text)
			}
		}
	}
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	stop()
	p, err := ReadPositions(dir+"/state.json", nil)
	if err != nil || p.Counts.Sent != 3 {
		t.Errorf("%+v, %v", p, err)
	}
}
