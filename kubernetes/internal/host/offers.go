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

// profileOffers are the profiles that this process offers to other hosts. It listens on the network while there is at least one.
type profileOffers struct {
	store    *Store
	identity identity
	// certificateOf returns the checksum of the certificate of another host, or "" if that is unknown.
	certificateOf func(ctx context.Context, host string) (sum string, err error)
	log           *slog.Logger
	host          string // address to listen on, HOST:PORT

	mu       sync.Mutex
	by       map[string]*profileOffer // offers by the UID of the object
	listener net.Listener

	callers openConnections
}

// profileOffer is one profile that is offered to the host to.
type profileOffer struct {
	name, uid, to string
	nonce         string
	run           uint64      // number of the gateway's last run, which has left the data as it is offered
	home          fs.FileInfo // the offered directory
	sent          string      // SHA-256 of the archive; "" until it was sent in full
	snapshot      string      // what was sent, see [Store.snapshot]
	failed        error       // why the data was not sent in full the last time

	progress time.Time          // when data was last sent, or when the offer was made
	end      context.CancelFunc // calling end ends the request that is being answered; nil if there was none
}

// maxStall is the time without any sent data after which a host ends a move. The gateway is down all that time. It is long,
// because a host sends nothing while it computes the checksum of a file, which takes minutes for many gigabytes.
const maxStall = 10 * time.Minute

const (
	dataPath = "/v1/data/" // followed by UID/NONCE
	anyRun   = ^uint64(0)  // anyRun takes the place of a run number, for a gateway that hinit no longer knows
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
	one.home, _ = o.store.root.Stat(o.store.Home(one.name)) // without this information, send returns an error
	one.progress = time.Now()
	o.by[one.uid] = &one
	return &v1alpha1.Offer{Nonce: one.nonce, Address: o.listener.Addr().String(), Certificate: o.identity.sum}, nil
}

// nonceSince returns the nonce of the offer for the object uid if it was made after its gateway's last run. run is the number of that
// run; anyRun stands for every run. sent is the nonce if the data was sent with the checksum sum, otherwise "".
func (o *profileOffers) nonceSince(uid, sum string, run uint64) (offered, sent string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	one := o.by[uid]
	if one == nil || one.run != run && run != anyRun {
		return "", ""
	}
	if sum != "" && one.sent == sum {
		sent = one.nonce
	}
	return one.nonce, sent
}

// failure returns why the data of an object could not be sent the last time, or nil.
func (o *profileOffers) failure(uid string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if one := o.by[uid]; one != nil {
		return one.failed
	}
	return nil
}

// snapshot returns the [Store.snapshot] of the data of an object that was sent last.
func (o *profileOffers) snapshot(uid string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if one := o.by[uid]; one != nil {
		return one.snapshot
	}
	return ""
}

// stalled reports whether nothing of the offered data of an object was sent for maxStall.
func (o *profileOffers) stalled(uid string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	one := o.by[uid]
	return one != nil && time.Since(one.progress) > maxStall
}

// forget withdraws the offer of an object and ends its request. After the last offer it closes the listener.
func (o *profileOffers) forget(uid string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if one := o.by[uid]; one != nil {
		delete(o.by, uid)
		one.replaceRequest(nil)
	}
	if len(o.by) == 0 && o.listener != nil {
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
	clear(o.by)
}

// listen opens the listener. A client must present any certificate and prove that it has the key. sendData checks which certificate
// it is.
func (o *profileOffers) listen() error {
	l, err := net.Listen("tcp", o.host) //nolint:noctx // net.Listen on an address does not wait
	if err != nil {
		return err
	}
	l = tls.NewListener(limitedListener{l, &o.callers}, &tls.Config{
		Certificates: []tls.Certificate{o.identity.certificate}, ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS13, GetConfigForClient: o.admit,
	})
	o.listener = l
	server := &http.Server{
		Handler: http.HandlerFunc(o.sendData), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 10 * time.Second, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(o.log.Handler(), slog.LevelDebug), // each broken connection causes a line
	}
	server.SetKeepAlivesEnabled(false)  // each connection carries only one request
	go func() { _ = server.Serve(l) }() // the goroutine ends with the listener
	return nil
}

// ServerName returns the name by which the first message of a TLS connection names an offer. That message is not encrypted, and
// the name doesn't show the nonce.
func ServerName(nonce string) string {
	sum := sha256.Sum256([]byte("offer " + nonce))
	return hex.EncodeToString(sum[:16]) + ".hinit-fleet"
}

// admit looks at the first message of a TLS connection. If it names no offer, admit refuses the connection before this host signs
// anything, because a signature costs much processor time.
func (o *profileOffers) admit(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, one := range o.by {
		if ServerName(one.nonce) != hello.ServerName {
			continue
		}
		if c, is := hello.Conn.(*connection); is {
			c.named.Store(true)
		}
		return nil, nil //nolint:nilnil // the configuration of the listener is used
	}
	return nil, errors.New("it names no offer")
}

// sendData sends the data of an offer, but only to the host for which the offer was made. The request must also name the object. An
// attacker in another host could write the nonce and address of this offer into the status of its own profile.
func (o *profileOffers) sendData(w http.ResponseWriter, r *http.Request) {
	uid, nonce, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, dataPath), "/")
	o.mu.Lock()
	one := o.by[uid]
	o.mu.Unlock()
	if r.Method != http.MethodGet || one == nil || one.nonce != nonce {
		http.Error(w, "no such offer", http.StatusNotFound)
		return
	}
	wanted, err := o.certificateOf(r.Context(), one.to)
	if err != nil || !isFrom(r.TLS, wanted) {
		o.log.Warn("a request for a profile is refused", "profile", one.name, "to", one.to, "error", err)
		http.Error(w, "not for you", http.StatusForbidden)
		return
	}
	ctx, end := context.WithCancel(r.Context())
	defer end()
	deadline := http.NewResponseController(w)
	// At the end of ctx, this ends a write to a host that does not read.
	defer context.AfterFunc(ctx, func() { _ = deadline.SetWriteDeadline(time.Now()) })()
	o.mu.Lock()
	one.replaceRequest(end)
	if o.by[uid] != one { // it was withdrawn meanwhile
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
	if ctx.Err() == nil { // otherwise the client has gone, and knows why
		one.failed = err
	}
	o.mu.Unlock()
	if err != nil {
		o.log.Warn("profile was not sent", "profile", one.name, "to", one.to, "error", err)
		if !begun { // the client writes the reason into the status
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
			return
		}
		panic(http.ErrAbortHandler) // abort, so that the client can't mistake the part for the whole archive
	}
}

// replaceRequest ends the request that is being answered, and stores the new one. A host sends a new request only after it has given up
// the last one.
func (one *profileOffer) replaceRequest(end context.CancelFunc) {
	if one.end != nil {
		one.end()
	}
	one.end = end
}

// progressWriter calls its function sent after each Write that has written at least one byte.
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
// checksum of the whole archive, and its [Store.snapshot]. If it fails and begun is false, it has written nothing, and the caller
// must answer the request.
func (s *Store) send(one *profileOffer, w http.ResponseWriter, r *http.Request) (snapshot, sum string, begun bool, err error) {
	home, err := s.openDir(s.Home(one.name))
	if err != nil {
		return "", "", false, err
	}
	defer home.Close()
	if now, err := home.Stat(); err != nil || !os.SameFile(now, one.home) { // the offered directory is set aside
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
	_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &x.From) // without a Range header, send the archive from its beginning
	head, sum, _, err := x.Run(r.Context(), w)
	return head.Snapshot, sum, begun, err
}

// exportOf returns an export of the data of a stopped profile, which is in an open directory.
func exportOf(dir *os.File, name string) *archive.Export {
	return &archive.Export{Home: descriptor(dir), Name: name, Secrets: true, Links: true, HomeIdle: true}
}

// errHeadRead ends an export of which only the head is needed.
var errHeadRead = errors.New("its head is enough")

// snapshot returns a checksum of the names, sizes and times of the files in a directory. The head of an archive has these. If the
// checksum has changed, the data has.
func (s *Store) snapshot(ctx context.Context, name, at string) (string, error) {
	dir, err := s.openDir(at)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	nowhere, out := io.Pipe()
	_ = nowhere.CloseWithError(errHeadRead) // it never fails
	head, _, _, err := exportOf(dir, name).Run(ctx, out)
	if !errors.Is(err, errHeadRead) {
		return "", err
	}
	return head.Snapshot, nil
}

// descriptor returns a path that refers to an open directory. Renaming or replacing the directory does not change where the path
// leads.
func descriptor(dir *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", dir.Fd()) }
