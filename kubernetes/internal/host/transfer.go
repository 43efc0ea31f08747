package host

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/kubernetes/api/v1alpha1"
)

// Judge says which pod a token is of. The error is for people.
type Judge func(ctx context.Context, token string) (pod string, err error)

// offers are what this process offers to other hosts. It listens while there is at least one.
type offers struct {
	store   *Store
	archive Archive
	judge   Judge
	host    string // where it listens, HOST:PORT

	mu       sync.Mutex
	by       map[string]*offer // by nonce
	listener net.Listener
	sum      string // SHA-256 of the certificate
}

// offer is one profile for one host.
type offer struct {
	name, uid, to string
	run           uint64 // the last run of the gateway: its data is as that run has left it
	sent          string // SHA-256 of the data that was sent in full, "" before
}

const (
	dataPath = "/v1/data/"
	anyRun   = ^uint64(0) // of a gateway that hinit does not know any more
)

// make begins an offer, and returns how it is had.
func (o *offers) make(one offer) (*v1alpha1.Offer, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.listener == nil {
		if err := o.listen(); err != nil {
			return nil, fmt.Errorf("cannot listen for host %s: %w", one.to, err)
		}
	}
	nonce := rand.Text()
	o.by[nonce] = &one
	return &v1alpha1.Offer{Nonce: nonce, Address: o.listener.Addr().String(), Certificate: o.sum}, nil
}

// known returns the nonces of offers of an object, and the nonces whose data was sent with a sum. An offer from before the last run of the
// gateway does not count.
func (o *offers) known(uid, sum string, run uint64) (offered, sent []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for nonce, one := range o.by {
		if one.uid != uid || one.run != run && run != anyRun {
			continue
		}
		offered = append(offered, nonce)
		if sum != "" && one.sent == sum {
			sent = append(sent, nonce)
		}
	}
	return offered, sent
}

// forget ends the offers of an object. Without offers nothing listens.
func (o *offers) forget(uid string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for nonce, one := range o.by {
		if one.uid == uid {
			delete(o.by, nonce)
		}
	}
	if len(o.by) == 0 && o.listener != nil {
		_ = o.listener.Close()
		o.listener = nil
	}
}

// close ends all offers.
func (o *offers) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.listener != nil {
		_ = o.listener.Close()
		o.listener = nil
	}
	clear(o.by)
}

// listen begins to listen, with a certificate that lives as long as the listener.
func (o *offers) listen() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(1, 0, 0), DNSNames: []string{"hinit-fleet"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(der)
	l, err := tls.Listen("tcp", o.host, &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS13,
	})
	if err != nil {
		return err
	}
	o.listener, o.sum = l, hex.EncodeToString(sum[:])
	server := &http.Server{Handler: http.HandlerFunc(o.serve), ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 64 << 10}
	go func() { _ = server.Serve(l) }() // it ends with the listener
	return nil
}

// serve sends the data of an offer to the host that it is for.
func (o *offers) serve(w http.ResponseWriter, r *http.Request) {
	nonce := strings.TrimPrefix(r.URL.Path, dataPath)
	o.mu.Lock()
	one := o.by[nonce]
	o.mu.Unlock()
	token, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if r.Method != http.MethodGet || one == nil || !bearer {
		http.Error(w, "no such offer", http.StatusNotFound)
		return
	}
	pod, err := o.judge(r.Context(), token)
	if err != nil || pod != one.to {
		http.Error(w, "not for you", http.StatusForbidden)
		return
	}
	home, err := o.store.root.OpenRoot(o.store.Home(one.name))
	if err != nil {
		http.Error(w, "no data", http.StatusNotFound)
		return
	}
	defer home.Close()
	hash := sha256.New()
	if err := o.archive.Export(r.Context(), home, io.MultiWriter(w, hash)); err != nil {
		panic(http.ErrAbortHandler) // the client must not take it for the whole
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	one.sent = hex.EncodeToString(hash.Sum(nil))
}

// counted is what a stream had.
type counted struct {
	SHA256 string `json:"sha256"`
	Bytes  int64  `json:"bytes"`
}

// counter counts the bytes of a stream.
type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) { c.n += int64(len(p)); return len(p), nil }

// fetch stores the data of an offer as data that came.
func (s *Store) fetch(ctx context.Context, name, uid string, from *v1alpha1.Offer, token string, archive Archive) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+from.Address+dataPath+from.Nonce, nil)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, // the one certificate that the object names is taken, and no other
		VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error {
			if sum := sha256.Sum256(raw[0]); hex.EncodeToString(sum[:]) != from.Certificate {
				return errors.New("it has another certificate than the offer names")
			}
			return nil
		},
	}}
	answer, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		return fmt.Errorf("cannot fetch profile %q from %s: %w", name, from.Address, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("cannot fetch profile %q from %s: it answers %s", name, from.Address, answer.Status)
	}
	if err := s.receive(ctx, name, uid, from.Nonce, answer.Body, archive); err != nil {
		return fmt.Errorf("cannot store profile %q from %s: %w", name, from.Address, err)
	}
	return nil
}

// receive stores a stream as data that came. An older one of the object is removed before.
func (s *Store) receive(ctx context.Context, name, uid, nonce string, body io.Reader, archive Archive) error {
	part := path.Join(partDir, fmt.Sprintf("%s.%s.%s", name, uid, nonce))
	if err := errors.Join(s.root.RemoveAll(part), s.root.Mkdir(part, 0o700)); err != nil {
		return err
	}
	hash, count := sha256.New(), &counter{}
	body = io.TeeReader(body, io.MultiWriter(hash, count))
	err := s.within(part, func(home *os.Root) error { return archive.Import(ctx, home, body) })
	if err == nil {
		_, err = io.Copy(io.Discard, body) // what follows the archive, and the end that says that it was whole
	}
	if err == nil { // the sender removes its data soon: files and directories must be on the disk
		err = s.within(part, func(home *os.Root) error {
			dir, err := home.Open(".")
			if err != nil {
				return err
			}
			return errors.Join(unix.Syncfs(int(dir.Fd())), dir.Close())
		})
	}
	if err != nil {
		return errors.Join(err, s.root.RemoveAll(part))
	}
	text, err := json.Marshal(counted{hex.EncodeToString(hash.Sum(nil)), count.n})
	if err != nil {
		return err
	}
	to := incoming(name, uid, nonce)
	return errors.Join(s.DropIncoming(name, uid), s.rename(part, to), s.replace(to+".json", text, 0o600))
}

// within calls fn with a directory.
func (s *Store) within(dir string, fn func(*os.Root) error) error {
	home, err := s.root.OpenRoot(dir)
	if err != nil {
		return err
	}
	return errors.Join(fn(home), home.Close())
}

// receipt returns what is known of data that came.
func (s *Store) receipt(name, uid, nonce string) (*v1alpha1.Receipt, error) {
	text, err := s.root.ReadFile(incoming(name, uid, nonce) + ".json")
	if err != nil {
		return nil, err
	}
	var c counted
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, err
	}
	return &v1alpha1.Receipt{Nonce: nonce, SHA256: c.SHA256, Bytes: c.Bytes}, nil
}
