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
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"hinit/kubernetes/api/v1alpha1"
	"hinit/profiles/archive"
)

// profileOffers are the profiles that this process offers to other hosts. It listens on the network only while it offers a
// profile.
type profileOffers struct {
	store    *Store
	identity identity
	// certificateOf returns the checksum of the certificate of another host, or "" if that is unknown.
	certificateOf func(ctx context.Context, host string) (sum string, err error)
	log           *slog.Logger
	host          string // Address to listen on, HOST:PORT.

	mu       sync.Mutex
	byUID    map[string]*profileOffer // Offers by the UID of the profile's object.
	listener net.Listener

	callers openConnections
}

// profileOffer is the offer of one profile. Only the host with the name in to may fetch it.
type profileOffer struct {
	name, uid, to string
	nonce         string
	run           uint64      // Number of the gateway's last run before the offer.
	home          fs.FileInfo // Directory that is offered.
	sent          string      // SHA-256 of the sent archive; "" until all of it was sent.
	snapshot      string      // Snapshot of the sent data, see [Store.snapshot].
	err           error       // Error that interrupted the last transfer; nil after a success.

	progress time.Time          // Time at which data was last sent; at first, the time of the offer.
	cancel   context.CancelFunc // Cancels the request that is being answered; nil before the first request.
}

// stallTimeout is how long nothing may be sent before a host ends a move. The gateway is down all that time. The time is long,
// because a host sends nothing while it computes the checksum of a file. For a file of many gigabytes this takes minutes.
const stallTimeout = 10 * time.Minute

const (
	dataPathPrefix = "/v1/data/" // Prefix of the URL path; UID/NONCE follow.
	anyRun         = ^uint64(0)  // Stands for any run number, for a gateway that hinit no longer knows.
)

// make registers an offer, and returns what the other host needs to fetch the data.
func (o *profileOffers) make(one profileOffer) (*v1alpha1.Offer, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.listener == nil {
		if err := o.listen(); err != nil {
			return nil, fmt.Errorf("cannot listen for host %s: %w", one.to, err)
		}
	}
	one.nonce = rand.Text()
	one.home, _ = o.store.root.Stat(o.store.Home(one.name)) // Ignore the error: if home is nil, send returns an error.
	one.progress = time.Now()
	o.byUID[one.uid] = &one
	return &v1alpha1.Offer{Nonce: one.nonce, Address: o.listener.Addr().String(), Certificate: o.identity.fingerprint}, nil
}

// nonceSince returns the nonce of the offer for the object uid if the gateway has not run since.
// run is the number of the gateway's last run; anyRun matches every run. sent is the same nonce if
// the data was sent with the checksum sum, and "" otherwise.
func (o *profileOffers) nonceSince(uid, sum string, run uint64) (offered, sent string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	one := o.byUID[uid]
	if one == nil || one.run != run && run != anyRun {
		return "", ""
	}
	if sum != "" && one.sent == sum {
		sent = one.nonce
	}
	return one.nonce, sent
}

// transferError returns the error that interrupted the last transfer of an object's data, or nil.
func (o *profileOffers) transferError(uid string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if one := o.byUID[uid]; one != nil {
		return one.err
	}
	return nil
}

// snapshot returns the [Store.snapshot] of the data that was last sent for an object.
func (o *profileOffers) snapshot(uid string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if one := o.byUID[uid]; one != nil {
		return one.snapshot
	}
	return ""
}

// stalled reports whether no data of an object's offer was sent for stallTimeout.
func (o *profileOffers) stalled(uid string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	one := o.byUID[uid]
	return one != nil && time.Since(one.progress) > stallTimeout
}

// forget withdraws the offer of an object and ends its request. After the last offer it closes the listener.
func (o *profileOffers) forget(uid string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if one := o.byUID[uid]; one != nil {
		delete(o.byUID, uid)
		one.replaceRequest(nil)
	}
	if len(o.byUID) == 0 && o.listener != nil {
		_ = o.listener.Close()
		o.listener = nil
	}
}

// close withdraws all offers and closes the listener.
func (o *profileOffers) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.listener != nil {
		_ = o.listener.Close()
		o.listener = nil
	}
	clear(o.byUID)
}

// listen opens the listener. A client must present a certificate and prove that it has the key. sendData checks which
// certificate it is.
func (o *profileOffers) listen() error {
	l, err := net.Listen("tcp", o.host) //nolint:noctx // net.Listen does not wait if the host is an address
	if err != nil {
		return err
	}
	l = tls.NewListener(limitedListener{l, &o.callers}, &tls.Config{
		Certificates: []tls.Certificate{o.identity.certificate}, ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS13, GetConfigForClient: o.admit,
	})
	o.listener = l
	server := &http.Server{
		Handler: http.HandlerFunc(o.sendData), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 10 * time.Second, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(o.log.Handler(), slog.LevelDebug), // Each broken connection causes a line, so use a low level.
	}
	server.SetKeepAlivesEnabled(false)  // Each connection carries only one request.
	go func() { _ = server.Serve(l) }() // Serve returns when the listener is closed.
	return nil
}

// ServerName returns the server name with which a client names an offer in the first message of a TLS connection. It is a
// hash of the nonce, because that message is not encrypted.
func ServerName(nonce string) string {
	sum := sha256.Sum256([]byte("offer " + nonce))
	return hex.EncodeToString(sum[:16]) + ".hinit-fleet"
}

// admit checks the first message of a TLS connection. If the message names no offer, admit refuses the connection before this
// host computes a signature, which costs much processor time.
func (o *profileOffers) admit(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, one := range o.byUID {
		if ServerName(one.nonce) != hello.ServerName {
			continue
		}
		if c, is := hello.Conn.(*connection); is {
			c.hasOffer.Store(true)
		}
		return nil, nil //nolint:nilnil // nil means that the configuration of the listener is used
	}
	return nil, errors.New("it names no offer")
}

// sendData sends the data of an offer, but only to the host for which the offer was made. The request must also name the
// object: an attacker in another host could write the nonce and address of this offer into the status of its own profile.
func (o *profileOffers) sendData(w http.ResponseWriter, r *http.Request) {
	uid, nonce, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, dataPathPrefix), "/")
	o.mu.Lock()
	one := o.byUID[uid]
	o.mu.Unlock()
	if r.Method != http.MethodGet || one == nil || one.nonce != nonce {
		http.Error(w, "no such offer", http.StatusNotFound)
		return
	}
	wanted, err := o.certificateOf(r.Context(), one.to)
	if err != nil || !hasFingerprint(r.TLS, wanted) {
		o.log.Warn("a request for a profile is refused", "profile", one.name, "to", one.to, "error", err)
		http.Error(w, "not for you", http.StatusForbidden)
		return
	}
	ctx, end := context.WithCancel(r.Context())
	defer end()
	deadline := http.NewResponseController(w)
	// When ctx ends, end a write to a host that does not read.
	defer context.AfterFunc(ctx, func() { _ = deadline.SetWriteDeadline(time.Now()) })()
	o.mu.Lock()
	one.replaceRequest(end)
	if o.byUID[uid] != one { // The offer was withdrawn before its data was sent.
		end()
	}
	o.mu.Unlock()
	snapshot, sum, begun, err := o.store.send(one, progressWriter{w, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		one.progress = time.Now()
	}}, r.WithContext(ctx))
	o.mu.Lock()
	if err == nil {
		one.sent, one.snapshot = sum, snapshot
	}
	if ctx.Err() == nil { // If ctx has ended, the client is gone and knows the reason.
		one.err = err
	}
	o.mu.Unlock()
	if err != nil {
		o.log.Warn("profile was not sent", "profile", one.name, "to", one.to, "error", err)
		if !begun { // The client writes this reason into the status.
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
			return
		}
		panic(http.ErrAbortHandler) // Abort the connection, so that the client can't mistake the part for the whole archive.
	}
}

// replaceRequest ends the request that is being answered, and stores the function end of the new one. A host sends a new
// request only after it has given up the last one.
func (one *profileOffer) replaceRequest(end context.CancelFunc) {
	if one.cancel != nil {
		one.cancel()
	}
	one.cancel = end
}

// progressWriter calls sent after each Write that has written at least one byte.
type progressWriter struct {
	http.ResponseWriter
	sent func()
}

// Write implements [io.Writer].
func (w progressWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	if n > 0 {
		w.sent()
	}
	return n, err
}

// Flush implements [http.Flusher].
func (w progressWriter) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// send writes the archive of an offered profile, or only the rest if the client already has the beginning. It returns the
// checksum of the whole archive, and its [Store.snapshot]. If it fails and begun is false, it has written nothing, and the
// caller must answer the request.
func (s *Store) send(one *profileOffer, w http.ResponseWriter, r *http.Request) (snapshot, sum string, begun bool, err error) {
	home, err := s.openDir(s.Home(one.name))
	if err != nil {
		return "", "", false, err
	}
	defer home.Close()
	// The offered directory was set aside if another one is in its place.
	if now, err := home.Stat(); err != nil || !os.SameFile(now, one.home) {
		return "", "", false, errors.Join(err, fmt.Errorf("cannot send profile %q: something has made its home again", one.name))
	}
	x := exportOf(home, one.name)
	x.Snapshot = r.Header.Get("If-Range")
	x.BeforeSend = func(from int64) {
		begun = true
		if from > 0 {
			w.WriteHeader(http.StatusPartialContent)
		}
	}
	// Without a Range header, Offset stays 0 and the archive is sent from its beginning.
	_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &x.Offset)
	head, sum, _, err := x.Run(r.Context(), w)
	return head.Snapshot, sum, begun, err
}

// exportOf returns an export of the data of a stopped profile. dir is the open directory with the data.
func exportOf(dir *os.File, name string) *archive.Export {
	return &archive.Export{Home: descriptor(dir), Name: name, IncludeSecrets: true, AllowOutsideLinks: true, HomeIdle: true}
}

// errHeadRead ends an export after its head, which is enough for a snapshot.
var errHeadRead = errors.New("its head is enough")

// snapshot returns a checksum of the names, sizes and times of the files in a directory. If it has changed, the data has
// changed. snapshot reads these properties from the head of an archive.
func (s *Store) snapshot(ctx context.Context, name, at string) (string, error) {
	dir, err := s.openDir(at)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	nowhere, out := io.Pipe()
	_ = nowhere.CloseWithError(errHeadRead) // Ignore the error: closing this pipe never fails.
	head, _, _, err := exportOf(dir, name).Run(ctx, out)
	if !errors.Is(err, errHeadRead) {
		return "", err
	}
	return head.Snapshot, nil
}

// descriptor returns a path that leads to an open directory, even if the directory is renamed or replaced.
func descriptor(dir *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", dir.Fd()) }
