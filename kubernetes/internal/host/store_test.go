package host

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/placement"
	"hinit/profiles/archive"
)

// fetchingHost is the identity of the host that fetches.
var fetchingHost = func() identity {
	i, err := newIdentity()
	if err != nil {
		panic(err)
	}
	return i
}()

// newVolume creates a store. Unless text is empty, the store has the profile coder of the object uid,
// with text in its file data.
func newVolume(t *testing.T, uid, text string) (*Store, string) {
	t.Helper()
	dir := t.TempDir()
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	if text == "" {
		return s, dir
	}
	if err := s.Claim("coder", uid); err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(dir, "profiles", "coder")
	if err := os.MkdirAll(home, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "data"), []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	return s, dir
}

func inspectStore(t *testing.T, s *Store, uid string) placement.LocalState {
	t.Helper()
	l, err := s.Inspect("coder", uid, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestTheDataOfAProfileIsInOnePlaceAfterEachStep checks where the data is after each step of a
// move, and of a cancelled move.
func TestTheDataOfAProfileIsInOnePlaceAfterEachStep(t *testing.T) {
	s, dir := newVolume(t, "u1", "learnt")
	if l := inspectStore(t, s, "u1"); !l.Live || l.Aside != 0 {
		t.Fatalf("at first: %+v", l)
	}
	if l := inspectStore(t, s, "u2"); l.Live {
		t.Fatalf("another object: %+v", l)
	}
	if err := s.SetAside("coder", "u1", 3); err != nil {
		t.Fatal(err)
	}
	if l := inspectStore(t, s, "u1"); l.Live || l.Aside != 3 {
		t.Fatalf("set aside: %+v", l)
	}
	if err := s.TakeBack("coder", "u1", 3); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "profiles/coder/data"))
	if l := inspectStore(t, s, "u1"); !l.Live || l.Aside != 0 || string(text) != "learnt" {
		t.Fatalf("taken back: %+v %q %v", l, text, err)
	}
	if err := s.Retire("coder", "u1", true); err != nil {
		t.Fatal(err)
	}
	kept, _ := filepath.Glob(filepath.Join(dir, retainedDir, "coder.u1.*", "data"))
	if l := inspectStore(t, s, "u1"); l.Live || len(kept) != 1 {
		t.Fatalf("retired: %+v %v", l, kept)
	}
}

// TestADirectoryThatSomebodyElseMadeIsNotTaken checks that a host does not adopt a directory with
// the profile's name that the fleet did not create.
func TestADirectoryThatSomebodyElseMadeIsNotTaken(t *testing.T) {
	s, dir := newVolume(t, "", "")
	if err := os.MkdirAll(filepath.Join(dir, "profiles/coder"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := s.Claim("coder", "u1"); err == nil || !strings.Contains(err.Error(), `cannot make profile "coder": its directory profiles/coder exists`) {
		t.Error(err)
	}
}

// newOfferServer offers the profile coder of a store. If most is not 0, each connection breaks after that
// number of bytes. sent counts all sent bytes.
func newOfferServer(t *testing.T, s *Store, most *atomic.Int64) (o *profileOffers, from *v1alpha1.Offer, sent *atomic.Int64) {
	t.Helper()
	o = &profileOffers{
		store: s, host: "127.0.0.1:0", byUID: map[string]*profileOffer{}, log: slog.New(slog.DiscardHandler),
		identity: fetchingHost, certificateOf: func(context.Context, string) (string, error) { return fetchingHost.fingerprint, nil },
	}
	t.Cleanup(o.close)
	from, err := o.make(profileOffer{name: "coder", uid: "u1", to: "to"})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	sent = &atomic.Int64{}
	address := from.Address
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			host, err := net.Dial("tcp", address)
			if err != nil {
				_ = client.Close()
				continue
			}
			go func() { _, _ = io.Copy(host, client) }() // The goroutine ends with the connection.
			left := most.Load()
			if left == 0 {
				left = 1 << 40
			}
			n, _ := io.CopyN(client, host, left)
			sent.Add(n)
			_, _ = client.Close(), host.Close()
		}
	}()
	from.Address = l.Addr().String()
	return o, from, sent
}

// TestAMoveThatIsCutShortGoesOnWhereItWas checks that a move continues after each broken connection
// and sends each byte once.
func TestAMoveThatIsCutShortGoesOnWhereItWas(t *testing.T) {
	s, dir := newVolume(t, "u1", strings.Repeat(rand.Text(), 1<<18))
	home := filepath.Join(dir, "profiles/coder")
	if err := errors.Join(os.Symlink("/usr/bin/python3", filepath.Join(home, "python")), os.Mkdir(filepath.Join(home, "empty"), 0o750), os.Chmod(filepath.Join(home, "empty"), 0o750)); err != nil {
		t.Fatal(err)
	}
	most := &atomic.Int64{}
	most.Store(5 << 20 / 2)
	o, from, sent := newOfferServer(t, s, most)
	to, at := newVolume(t, "", "")
	cuts := 0
	for ; inspectStore(t, to, "u1").Incoming != from.Nonce; cuts++ {
		if cuts > 10 {
			t.Fatal("it does not end")
		}
		if to, _ = OpenStore(at); to == nil { // Open the directory anew, as after a crash.
			t.Fatal("the store does not open")
		}
		if err := to.fetch(context.Background(), "coder", "u1", from, fetchingHost); err != nil && !errors.Is(err, errInterrupted) {
			t.Fatal(err)
		}
		if cuts == 0 && inspectStore(t, to, "u1").Incoming != partialNonce {
			t.Fatalf("after the first cut: %+v", inspectStore(t, to, "u1"))
		}
	}
	whole := int64(26<<18) * 11 / 10
	if cuts < 3 || sent.Load() > whole {
		t.Errorf("%d bytes were sent in %d parts, and the whole has about %d", sent.Load(), cuts, whole)
	}
	r, err := to.receipt("coder", "u1", from.Nonce)
	if err != nil {
		t.Fatal(err)
	}
	if _, good := o.nonceSince("u1", r.SHA256, anyRun); good == "" {
		t.Errorf("the sums are different: %+v", r)
	}
	if err := to.Install("coder", "u1", from.Nonce); err != nil {
		t.Fatal(err)
	}
	same := func(name string) bool {
		a, err := os.Stat(filepath.Join(home, name))
		b, err2 := os.Stat(filepath.Join(at, "profiles/coder", name))
		return err == nil && err2 == nil && a.Mode() == b.Mode() && a.Size() == b.Size()
	}
	link, err := os.Readlink(filepath.Join(at, "profiles/coder/python"))
	if l := inspectStore(t, to, "u1"); !l.Live || l.Incoming != "" || !same("data") || !same("empty") || err != nil || link != "/usr/bin/python3" {
		t.Errorf("installed: %+v, a link to %q (%v)", l, link, err)
	}
}

// TestAProfileThatHasChangedIsFetchedFromTheBeginning checks that an interrupted move restarts from
// the beginning if the data has changed.
func TestAProfileThatHasChangedIsFetchedFromTheBeginning(t *testing.T) {
	s, dir := newVolume(t, "u1", strings.Repeat(rand.Text(), 1<<18))
	most := &atomic.Int64{}
	most.Store(3 << 20)
	_, from, _ := newOfferServer(t, s, most)
	to, at := newVolume(t, "", "")
	if err := to.fetch(context.Background(), "coder", "u1", from, fetchingHost); !errors.Is(err, errInterrupted) {
		t.Fatal(err)
	}
	text := strings.Repeat(rand.Text(), 1<<18)
	if err := os.WriteFile(filepath.Join(dir, "profiles/coder/data"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	most.Store(0)
	if err := errors.Join(to.fetch(context.Background(), "coder", "u1", from, fetchingHost), to.Install("coder", "u1", from.Nonce)); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(at, "profiles/coder/data")); err != nil || string(got) != text {
		t.Errorf("the data is not the new one: %d bytes, %v", len(got), err)
	}
}

// TestAMoveLeavesNoReceipt checks that the receipt of a move is removed when the profile is installed.
func TestAMoveLeavesNoReceipt(t *testing.T) {
	s, dir := newVolume(t, "", "")
	at := filepath.Join(dir, incomingPath("coder", "u1", "nonce"))
	if err := errors.Join(os.Mkdir(at, 0o700), os.WriteFile(at+".json", []byte("{}"), 0o600), s.Install("coder", "u1", "nonce")); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, incomingDir)); err != nil || len(left) > 0 {
		t.Errorf("%v are left: %v", left, err)
	}
}

// TestAnInstallThatFailsKeepsWhatCame checks that a failed install keeps the received data, which
// may be the only copy.
func TestAnInstallThatFailsKeepsWhatCame(t *testing.T) {
	s, _ := newVolume(t, "u1", "learnt")
	_, from, _ := newOfferServer(t, s, &atomic.Int64{})
	to, at := newVolume(t, "", "")
	if err := to.fetch(context.Background(), "coder", "u1", from, fetchingHost); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(at, "profiles/coder")
	if err := os.MkdirAll(foreign, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := to.Install("coder", "u1", from.Nonce); err == nil {
		t.Fatal("the directory of somebody else was taken")
	}
	if l := inspectStore(t, to, "u1"); l.Incoming != from.Nonce {
		t.Fatalf("what came is gone: %+v", l)
	}
	if err := errors.Join(os.Remove(foreign), to.Install("coder", "u1", from.Nonce)); err != nil || !inspectStore(t, to, "u1").Live {
		t.Error(err)
	}
}

// TestAProfileIsRecoveredFromAnExport checks that a profile can be recovered from an archive in the directory of
// backups.
func TestAProfileIsRecoveredFromAnExport(t *testing.T) {
	from, dir := newVolume(t, "u1", "learnt")
	s, at := newVolume(t, "", "")
	f, err := os.Create(filepath.Join(at, backupsDir, "coder.tar"))
	if err != nil {
		t.Fatal(err)
	}
	x := archive.Export{Home: filepath.Join(dir, from.Home("coder")), Name: "coder", IncludeSecrets: true}
	if _, _, _, err := x.Run(t.Context(), f); err != nil || f.Close() != nil {
		t.Fatal(err)
	}
	h := &host{store: s, settings: Settings{Name: "agents-1"}}
	if err := h.restore("coder", "u2", "coder.tar"); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(at, "profiles/coder/data")); err != nil || string(text) != "learnt" || !inspectStore(t, s, "u2").Live {
		t.Errorf("%q %v", text, err)
	}
}

// TestAProfileThatLinksToTheTokensSendsNone checks that a move does not follow a symbolic link in
// place of the home, which an agent may point out of the volume.
func TestAProfileThatLinksToTheTokensSendsNone(t *testing.T) {
	secrets := t.TempDir()
	if err := os.WriteFile(filepath.Join(secrets, "token"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, dir := newVolume(t, "u1", "x")
	home := filepath.Join(dir, "profiles/coder")
	if err := errors.Join(os.Rename(home, home+".away"), os.Symlink(secrets, home)); err != nil {
		t.Fatal(err)
	}
	_, from, sent := newOfferServer(t, s, &atomic.Int64{})
	to, _ := newVolume(t, "", "")
	if err := to.fetch(context.Background(), "coder", "u1", from, fetchingHost); err == nil || sent.Load() > 8<<10 || inspectStore(t, to, "u1").Incoming != "" {
		t.Errorf("%v, %d bytes were sent", err, sent.Load())
	}
}

// TestFilesOfAProfileDoNotFollowItsLinks checks that writing SOUL.md does not follow a symbolic
// link, for example to another profile's file.
func TestFilesOfAProfileDoNotFollowItsLinks(t *testing.T) {
	s, dir := newVolume(t, "u1", "x")
	other := filepath.Join(dir, "profiles/other")
	home := filepath.Join(dir, "profiles/coder")
	if err := os.MkdirAll(other, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(other, "SOUL.md"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"SOUL.md": "../other/SOUL.md", "notes": "../other"} {
		if err := os.Symlink(target, filepath.Join(home, link)); err != nil {
			t.Fatal(err)
		}
	}
	_, err := s.apply("coder", "u1", map[string][]byte{"SOUL.md": []byte("new")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.apply("coder", "u1", map[string][]byte{"notes/SOUL.md": []byte("new")}); err == nil {
		t.Error("a file was written through a link out of the profile")
	}
	if text, err := os.ReadFile(filepath.Join(other, "SOUL.md")); err != nil || string(text) != "mine" {
		t.Errorf("the other profile has %q (%v)", text, err)
	}
}

// TestAFloodOfTheMovePortEndsNoHost checks that a host limits its open connections. Otherwise an
// agent could exhaust the host's memory during moves.
func TestAFloodOfTheMovePortEndsNoHost(t *testing.T) {
	s, _ := newVolume(t, "u1", "learnt")
	o, from, _ := newOfferServer(t, s, &atomic.Int64{})
	address := o.listener.Addr().String()
	open := 0
	for _, c := range openIdleConnections(t, address, "127.0.0.2", 2*maxConnectionsPerPod) {
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			open++
		}
	}
	if open != maxConnectionsPerPod {
		t.Errorf("one address has %d connections", open)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{fetchingHost.certificate}, InsecureSkipVerify: true}} //nolint:gosec // this client checks no certificate on purpose
	answer, err := (&http.Client{Transport: transport}).Get("https://" + address + "/")
	if err == nil {
		_ = answer.Body.Close()
		t.Errorf("a connection that names no offer has the answer %s", answer.Status)
	}
	transport.TLSClientConfig.ServerName = ServerName(from.Nonce)
	answer, err = (&http.Client{Transport: transport}).Get("https://" + address + "/")
	if err != nil {
		t.Fatal(err)
	}
	if _ = answer.Body.Close(); answer.StatusCode != http.StatusNotFound || !answer.Close {
		t.Errorf("the connection of a wrong request stays open: %v", answer)
	}
}

// TestAFloodFromTheHostThatFetchesDelaysNoMove checks that a fetch succeeds although an agent on
// the same host opens idle connections all the time.
func TestAFloodFromTheHostThatFetchesDelaysNoMove(t *testing.T) {
	s, _ := newVolume(t, "u1", "learnt")
	o, from, _ := newOfferServer(t, s, &atomic.Int64{})
	address := o.listener.Addr().String()
	direct := *from
	direct.Address = address
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var opened atomic.Int64
	for range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				if c, err := net.Dial("tcp", address); err == nil {
					opened.Add(1)
					all.Go(func() {
						_, _ = c.Read(make([]byte, 1)) // The read returns when the host closes the connection.
						_ = c.Close()
					})
				}
			}
		})
	}
	defer all.Wait()
	defer o.close()
	defer cancel()
	for opened.Load() < 1000 {
		time.Sleep(time.Millisecond)
	}
	failed := 0
	before, began := opened.Load(), time.Now()
	const tries = 8
	for range tries {
		to, _ := newVolume(t, "", "")
		if err := to.fetch(t.Context(), "coder", "u1", &direct, fetchingHost); err != nil {
			failed++
			t.Log(err)
		}
	}
	t.Logf("%d of %d fetches have failed, with %.0f other connections a second", failed, tries, float64(opened.Load()-before)/time.Since(began).Seconds())
	if failed > tries/4 {
		t.Error("a flood of connections stops a move")
	}
}

// openIdleConnections opens n connections from the address from, and sends nothing on them.
func openIdleConnections(t *testing.T, to, from string, n int) (all []net.Conn) {
	t.Helper()
	for range n {
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", to)
		if err != nil {
			t.Error(err)
			return all
		}
		t.Cleanup(func() { _ = c.Close() })
		all = append(all, c)
	}
	return all
}

// TestAnAgentThatHoldsConnectionsOpenDelaysNoMove checks that idle connections of agents, on the address of the host
// that fetches and elsewhere, don't prevent a fetch.
func TestAnAgentThatHoldsConnectionsOpenDelaysNoMove(t *testing.T) {
	for what, others := range map[string]int{"on the same address": 0, "on all": maxConnections / maxConnectionsPerPod} {
		s, _ := newVolume(t, "u1", "learnt")
		o, from, _ := newOfferServer(t, s, &atomic.Int64{})
		address := o.listener.Addr().String()
		o.certificateOf = func(context.Context, string) (string, error) {
			openIdleConnections(t, address, "127.0.0.1", 2*maxConnectionsPerPod) // The largest number of connections that must not delay a move.
			return fetchingHost.fingerprint, nil
		}
		for i := range others {
			openIdleConnections(t, address, fmt.Sprintf("127.0.0.%d", 2+i), maxConnectionsPerPod)
		}
		openIdleConnections(t, address, "127.0.0.1", maxConnectionsPerPod)
		to, _ := newVolume(t, "", "")
		if err := to.fetch(t.Context(), "coder", "u1", from, fetchingHost); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestTheStatusSaysWhyAProfileIsNotSent checks that the status names the reason why a transfer
// failed, and not only EOF.
func TestTheStatusSaysWhyAProfileIsNotSent(t *testing.T) {
	s, dir := newVolume(t, "u1", "learnt")
	if err := os.Truncate(filepath.Join(dir, "profiles/coder/data"), 10<<40); err != nil {
		t.Fatal(err)
	}
	_, from, _ := newOfferServer(t, s, &atomic.Int64{})
	to, _ := newVolume(t, "", "")
	err := to.fetch(t.Context(), "coder", "u1", from, fetchingHost)
	if err == nil || !strings.Contains(err.Error(), `it answers 422 Unprocessable Entity: "data" seems to have 10995116277760 bytes`) {
		t.Error(err)
	}
}

// TestATreeBesideAFileHoldsNoWorker checks that a large directory of an agent, where the fleet
// writes a new file, does not block a worker.
func TestATreeBesideAFileHoldsNoWorker(t *testing.T) {
	s, dir := newVolume(t, "u1", "x")
	home := filepath.Join(dir, "profiles/coder")
	tree := filepath.Join(home, ".hinit-new.SOUL.md")
	if err := os.MkdirAll(filepath.Join(tree, "a/b/c"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := s.apply("coder", "u1", map[string][]byte{"SOUL.md": []byte("new")})
	text, err2 := os.ReadFile(filepath.Join(home, "SOUL.md"))
	left, err3 := filepath.Glob(tree + "*")
	if err != nil || err2 != nil || err3 != nil || string(text) != "new" {
		t.Fatalf("%v, %v, %v, %q", err, err2, err3, text)
	}
	if _, err := os.Stat(filepath.Join(tree, "a/b/c")); err != nil || len(left) != 1 {
		t.Errorf("%v; beside it are %q", err, left)
	}
}

// TestAMoveThatStandsStillLetsItsWorkerGo checks that a fetch ends if the other host sends nothing
// for a long time. Four such profiles would keep all workers busy.
func TestAMoveThatStandsStillLetsItsWorkerGo(t *testing.T) {
	other := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(make([]byte, 100)) // The write ends when the client disconnects.
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(other.Close)
	t.Cleanup(other.CloseClientConnections) // Run this cleanup before the server's close, which waits for the connections.
	sum := sha256.Sum256(other.Certificate().Raw)
	from := &v1alpha1.Offer{Nonce: "n", Address: other.Listener.Addr().String(), Certificate: hex.EncodeToString(sum[:])}
	to, _ := newVolume(t, "", "")
	to.idleTimeout = 300 * time.Millisecond
	p := &v1alpha1.AgentProfile{ObjectMeta: metav1.ObjectMeta{Name: "coder", Namespace: "agents", UID: "u1"}}
	p.Status.Move = &v1alpha1.Move{To: "to", Offer: from}
	api := fake.NewClientBuilder().WithScheme(v1alpha1.Scheme()).WithObjects(p).WithStatusSubresource(p).Build()
	h := newTestHost(t, "to", api, &fakeGateways{}, to)
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(p), p); err != nil {
		t.Fatal(err)
	}
	err := withinTenSeconds(t, "the fetch", func() error { return h.fetch(t.Context(), p) })
	const want = "moves to host to: cannot fetch profile \"coder\" from "
	if !errors.Is(err, errIdle) || !strings.HasPrefix(p.Status.Message, want) || !strings.Contains(p.Status.Message, "after 300ms it sends nothing") {
		t.Errorf("%v; the status says %q", err, p.Status.Message)
	}
	h.fetches["from"] = maxFetches
	if err := h.fetch(t.Context(), p); !errors.Is(err, errRetry) {
		t.Error("no worker is left for all else:", err)
	}
}

// slowOffer returns an offer through a proxy that waits before each answer. silent returns the delay of
// each request.
func slowOffer(t *testing.T, o *profileOffers, from *v1alpha1.Offer, silent func(*http.Request) time.Duration) *v1alpha1.Offer {
	other := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(silent(r)):
			o.sendData(w, r)
		case <-r.Context().Done():
		}
	}))
	other.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	other.StartTLS()
	t.Cleanup(other.Close)
	sum := sha256.Sum256(other.Certificate().Raw)
	return &v1alpha1.Offer{Nonce: from.Nonce, Address: other.Listener.Addr().String(), Certificate: hex.EncodeToString(sum[:])}
}

// TestAMoveOfALargeProfileThatWasCutGoesOn checks that an interrupted move of a large profile
// continues, although the old host first reads all sent data again, which may take more than five
// minutes.
func TestAMoveOfALargeProfileThatWasCutGoesOn(t *testing.T) {
	s, _ := newVolume(t, "u1", strings.Repeat(rand.Text(), 1<<20))
	most := &atomic.Int64{}
	most.Store(22 << 20)
	o, from, _ := newOfferServer(t, s, most)
	to, _ := newVolume(t, "", "")
	if err := to.fetch(t.Context(), "coder", "u1", from, fetchingHost); !errors.Is(err, errInterrupted) {
		t.Fatal(err)
	}
	to.idleTimeout = 500 * time.Millisecond
	reads := slowOffer(t, o, from, func(r *http.Request) time.Duration {
		if r.Header.Get("Range") == "" {
			t.Error("it begins anew")
		}
		return 2 * to.idleTimeout
	})
	if err := to.fetch(t.Context(), "coder", "u1", reads, fetchingHost); err != nil {
		t.Error(err)
	}
}

// TestAMoveOfALargeFileSucceedsInTheEnd checks that the timeout grows after each try if the
// checksum of a file takes too long. Otherwise such a profile would never move.
func TestAMoveOfALargeFileSucceedsInTheEnd(t *testing.T) {
	s, _ := newVolume(t, "u1", "learnt")
	o, from, _ := newOfferServer(t, s, &atomic.Int64{})
	to, _ := newVolume(t, "", "")
	to.idleTimeout = time.Second
	sums := slowOffer(t, o, from, func(*http.Request) time.Duration { return to.idleTimeout * 3 / 2 })
	if err := to.fetch(t.Context(), "coder", "u1", sums, fetchingHost); !errors.Is(err, errIdle) {
		t.Fatal(err)
	}
	if err := to.fetch(t.Context(), "coder", "u1", sums, fetchingHost); err != nil {
		t.Error(err)
	}
	if err := to.Install("coder", "u1", from.Nonce); err != nil || to.idleTimeoutOf("u1") != to.idleTimeout {
		t.Errorf("%v; the next move waits %v", err, to.idleTimeoutOf("u1"))
	}
}

// withinTenSeconds fails the test if fn does not return in 10 seconds.
func withinTenSeconds(t *testing.T, what string, fn func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- fn() }()
	select {
	case err := <-done:
		return err
	case <-time.After(10 * time.Second):
		t.Fatalf("%s hangs", what)
		return nil
	}
}

// TestAnAgentDoesNotEndOrStopTheHostByAFileOfItsOwn checks that an endless file or a FIFO in place
// of a fleet file neither ends the host nor blocks its workers.
func TestAnAgentDoesNotEndOrStopTheHostByAFileOfItsOwn(t *testing.T) {
	pipe := func(name string) error { return syscall.Mkfifo(name, 0o600) }
	endless := func(name string) error { return errors.Join(os.WriteFile(name, nil, 0o600), os.Truncate(name, 10<<40)) }
	for what, place := range map[string]struct {
		name string
		make func(string) error
	}{
		"a pipe": {"SOUL.md", pipe}, "a pipe beside it": {".hinit-new.SOUL.md", pipe}, "an endless file": {"SOUL.md", endless}, "an endless file beside it": {".hinit-new.SOUL.md", endless},
	} {
		s, dir := newVolume(t, "u1", "x")
		home := filepath.Join(dir, "profiles/coder")
		if err := place.make(filepath.Join(home, place.name)); err != nil {
			t.Fatal(err)
		}
		err := withinTenSeconds(t, what, func() error {
			changed, err := s.apply("coder", "u1", map[string][]byte{"SOUL.md": []byte("new")})
			if !changed {
				t.Errorf("%s: no file was changed", what)
			}
			return err
		})
		if text, err2 := os.ReadFile(filepath.Join(home, "SOUL.md")); err != nil || err2 != nil || string(text) != "new" {
			t.Errorf("%s: %v, %v, %q", what, err, err2, text)
		}
	}
}

// TestOneBadRecordStopsNoOtherProfile checks that foreign files in the store block no profile.
func TestOneBadRecordStopsNoOtherProfile(t *testing.T) {
	s, dir := newVolume(t, "u1", "x")
	live := filepath.Join(dir, liveDir)
	for name, err := range map[string]error{
		"pipe": syscall.Mkfifo(filepath.Join(live, "pipe"), 0o600), "text": os.WriteFile(filepath.Join(live, "text"), []byte("x"), 0o600),
		"endless": errors.Join(os.WriteFile(filepath.Join(live, "endless"), nil, 0o600), os.Truncate(filepath.Join(live, "endless"), 10<<40)),
	} {
		if err = errors.Join(err, os.Mkdir(filepath.Join(dir, "profiles", name), 0o700)); err != nil {
			t.Fatal(err)
		}
		err := withinTenSeconds(t, name, func() error {
			names, _, err := s.Names(func(string) bool { return false })
			coder, err2 := s.UIDs("coder")
			its, err3 := s.UIDs(name)
			if err = errors.Join(err, err2, err3); !slices.Contains(names, "coder") || !slices.Contains(names, name) || !slices.Equal(coder, []string{"u1"}) || !slices.Equal(its, []string{""}) {
				t.Errorf("known are %v, %v, %v", names, coder, its)
			}
			_, bad := s.Inspect(name, "", "", nil)
			if bad == nil || !strings.Contains(bad.Error(), `cannot read the record of profile "`+name+`"`) {
				t.Errorf("%s: %v", name, bad)
			}
			return err
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestANameThatIsNoProfilesIsNotAskedFor checks that the host does not ask the API for names in the store that no
// profile can have.
func TestANameThatIsNoProfilesIsNotAskedFor(t *testing.T) {
	s, dir := newVolume(t, "u1", "x")
	for _, name := range []string{"a%2fb", "a%b"} {
		if err := errors.Join(os.WriteFile(filepath.Join(dir, liveDir, name), nil, 0o600), os.Mkdir(filepath.Join(dir, asidePath(name, "u2", 1)), 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	if names, all, err := s.Names(func(string) bool { return false }); err != nil || all != 1 || !slices.Equal(names, []string{"coder"}) {
		t.Errorf("%d names, %q, %v", all, names, err)
	}
}

// TestAPipeInTheStoreHoldsNoWorker checks that a FIFO in place of an archive, of received data or
// of a profile's directory does not block a worker.
func TestAPipeInTheStoreHoldsNoWorker(t *testing.T) {
	s, dir := newVolume(t, "", "")
	part := filepath.Join(dir, partialPath("coder", "u1"))
	if err := os.Mkdir(part, 0o700); err != nil {
		t.Fatal(err)
	}
	im, done, err := s.importer("coder", "u1")
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	h := &host{store: s, settings: Settings{Name: "agents-1"}}
	for name, read := range map[string]func() error{
		filepath.Join(dir, backupsDir, "coder.tar"):                  func() error { return h.restore("coder", "u1", "coder.tar") },
		filepath.Join(dir, incomingPath("coder", "u1", "n")+".json"): func() error { _, err := s.receipt("coder", "u1", "n"); return err },
		filepath.Join(part, "archive"):                               func() error { _, _, err := im.InterruptedAt(); return err },
		filepath.Join(dir, "profiles"):                               func() error { return s.openHome("profiles", func(*os.Root) error { return nil }) },
	} {
		if err := syscall.Mkfifo(name, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := withinTenSeconds(t, name, read); err == nil {
			t.Errorf("%s was read", name)
		}
	}
}

// TestAnAgentThatWritesNoDirectoryCanBeDeletedAndMoved checks that a host can delete and move a
// home with read-only directories, such as Go's module cache.
func TestAnAgentThatWritesNoDirectoryCanBeDeletedAndMoved(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become the agents' user")
	}
	s, dir := newVolume(t, "u1", "x")
	locked := func(home string) {
		for _, name := range []string{"cache/module", "cache", ""} {
			if err := errors.Join(os.MkdirAll(filepath.Join(home, name), 0o755), os.Chmod(filepath.Join(home, name), 0o555)); err != nil {
				t.Fatal(err)
			}
		}
	}
	home := filepath.Join(dir, s.Home("coder"))
	locked(home)
	left := filepath.Join(dir, partDir, "left")
	locked(left)
	for name := dir; name != "/" && strings.Contains(name, t.Name()); name = filepath.Dir(name) {
		if err := os.Chmod(name, 0o755); err != nil { //nolint:gosec // the agents' user enters this directory
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("chown", "-R", "10000", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Setfsuid(10000); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Setfsuid(0) }() // setfsuid changes only this thread.
	if _, err := OpenStore(dir); err != nil || s.exists(path.Join(partDir, "left")) {
		t.Errorf("a start: %v", err)
	}
	if err := errors.Join(s.SetAside("coder", "u1", 1), s.TakeBack("coder", "u1", 1)); err != nil {
		t.Errorf("a move: %v", err)
	}
	if err := os.Chmod(home, 0o555); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete("coder", "u1", true); err != nil || s.exists(s.Home("coder")) {
		t.Errorf("a deletion: %v", err)
	}
	if err := emptyWholeTrash(t.Context(), s); err != nil {
		t.Error("the deletion of its data:", err)
	}
	for _, left := range []string{partDir, trashDir} {
		if rest, err := os.ReadDir(filepath.Join(dir, left)); err != nil || len(rest) > 0 {
			t.Errorf("%v is left: %v", rest, err)
		}
	}
}
