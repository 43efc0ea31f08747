package host

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"regexp"
	"strings"
	"time"

	"hinit/kubernetes/api/v1alpha1"
	"hinit/profiles/archive"
)

// errIdle ends a fetch when the other host has sent nothing for too long.
var errIdle = errors.New("it sends nothing; look for a file of many gigabytes in the profile, which may be sparse (du -h --apparent-size)")

// progressReader calls received after each read that has returned bytes.
type progressReader struct {
	io.Reader
	received func()
}

// Read implements [io.Reader].
func (a progressReader) Read(p []byte) (int, error) {
	n, err := a.Reader.Read(p)
	if n > 0 {
		a.received()
	}
	return n, err
}

// noncePattern matches a valid nonce of an offer. A nonce becomes part of a path, and an attacker in the other host may have
// written it.
var noncePattern = regexp.MustCompile(`^[A-Za-z0-9]{1,64}$`)

// fetch downloads the data of an offer and stores it as received data. It continues an interrupted download. If the other
// host sends nothing for the idle timeout, fetch gives up. The first wait of a continued download is longer: the other host
// first reads the part that this host already has, twice.
func (s *Store) fetch(ctx context.Context, name, uid string, from *v1alpha1.Offer, as identity) (err error) {
	if !noncePattern.MatchString(from.Nonce) {
		return fmt.Errorf("cannot fetch profile %q from %s: its nonce %q is no word of letters and digits", name, from.Address, from.Nonce)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+from.Address+dataPathPrefix+uid+"/"+from.Nonce, nil)
	if err != nil {
		return err
	}
	im, done, err := s.importer(name, uid)
	if err != nil {
		return err
	}
	defer done()
	snapshot, at, err := im.InterruptedAt()
	if err == nil {
		r.Header.Set("If-Range", snapshot)
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-", at))
	}
	timeout := s.idleTimeoutOf(uid)
	wait := min(timeout+time.Duration(at/minReadRate)*time.Second, max(timeout, stallTimeout))
	idle := time.AfterFunc(wait, func() { cancel(errIdle) })
	defer idle.Stop()
	defer func() {
		if err != nil && errors.Is(context.Cause(ctx), errIdle) { // Keep the received data.
			s.longerTimeouts.Store(uid, min(2*timeout, stallTimeout))
			err = fmt.Errorf("cannot fetch profile %q from %s: after %v %w", name, from.Address, wait, errIdle)
		}
	}()
	transport := &http.Transport{DisableKeepAlives: true, DisableCompression: true, TLSClientConfig: &tls.Config{
		MinVersion:         tls.VersionTLS13,
		Certificates:       []tls.Certificate{as.certificate},
		ServerName:         ServerName(from.Nonce),
		InsecureSkipVerify: true, // VerifyConnection accepts only the certificate in the offer.
		VerifyConnection: func(c tls.ConnectionState) error {
			if !hasFingerprint(&c, from.Certificate) {
				return errors.New("it has another certificate than the offer names")
			}
			return nil
		},
	}}
	// Don't follow a redirect: an attacker in the other host could make this host call any address, such as a server of its
	// agents.
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return fmt.Errorf("cannot fetch profile %q from %s: %w", name, from.Address, err)
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusOK:
	case http.StatusPartialContent:
		im.Offset = at
	default:
		why, _ := io.ReadAll(io.LimitReader(answer.Body, 512)) // Ignore the error: without the reason, the HTTP status is enough.
		return fmt.Errorf("cannot fetch profile %q from %s: it answers %s: %s", name, from.Address, answer.Status, strings.TrimSpace(strings.ToValidUTF8(string(why), "?")))
	}
	if err := s.receive(im, name, uid, from.Nonce, progressReader{answer.Body, func() {
		wait = timeout
		idle.Reset(wait)
	}}); err != nil {
		return fmt.Errorf("cannot store profile %q from %s: %w", name, from.Address, err)
	}
	return nil
}

// idleTimeoutOf returns how long a fetch of the object uid waits for the next bytes. It begins with s.idleTimeout, and
// doubles after each fetch that fails with errIdle, up to stallTimeout. A longer wait helps, because a host sends nothing while
// it reads one large file.
func (s *Store) idleTimeoutOf(uid string) time.Duration {
	if d, longer := s.longerTimeouts.Load(uid); longer {
		return d.(time.Duration)
	}
	return s.idleTimeout
}

// importer returns an archive import that writes an object's data into the directory for incomplete data. The caller must
// call done after the import.
func (s *Store) importer(name, uid string) (im *archive.Import, done func(), err error) {
	part, err := s.openDir(partDir)
	if err != nil {
		return nil, nil, err
	}
	return &archive.Import{Dir: descriptor(part), Name: name + "." + uid, AllowOutsideLinks: true}, func() { _ = part.Close() }, nil
}

// errInterrupted means that a stream ended early. The received part is kept, and the next fetch continues after it.
var errInterrupted = errors.New("the stream has ended early; the next try continues from there")

// receive reads an archive from body and stores it as received data. It replaces received data that the object already had.
func (s *Store) receive(im *archive.Import, name, uid, nonce string, body io.Reader) error {
	whole := path.Join(partDir, im.Name)
	if err := s.discard(whole); err != nil { // Remove complete data that a crash has left in the way.
		return err
	}
	head, sum, err := im.Run(body)
	if errors.Is(err, archive.ErrInterrupted) {
		return errInterrupted
	}
	if err != nil {
		return err
	}
	text, err := json.Marshal(v1alpha1.Receipt{SHA256: sum, Bytes: head.Bytes})
	if err != nil {
		return err
	}
	to := incomingPath(name, uid, nonce)
	return errors.Join(s.discardAll(incomingDir, name, uid), s.rename(whole, to), s.replace(to+".json", text))
}

// openHome opens the directory dir of the volume and calls fn with it.
func (s *Store) openHome(dir string, fn func(*os.Root) error) error {
	d, err := s.openDir(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	home, err := os.OpenRoot(descriptor(d))
	if err != nil {
		return err
	}
	return errors.Join(fn(home), home.Close())
}

// interruptedAt returns how many bytes of an object's data an interrupted fetch has received, and the snapshot from which
// they are.
func (s *Store) interruptedAt(name, uid string) (snapshot string, at int64) {
	im, done, err := s.importer(name, uid)
	if err != nil {
		return "", 0
	}
	defer done()
	snapshot, at, err = im.InterruptedAt()
	if err != nil {
		return "", 0
	}
	return snapshot, at
}

// receipt returns the checksum and size of received data.
func (s *Store) receipt(name, uid, nonce string) (*v1alpha1.Receipt, error) {
	text, err := s.readFile(incomingPath(name, uid, nonce)+".json", maxRecordBytes)
	if err != nil {
		return nil, err
	}
	r := &v1alpha1.Receipt{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, err
	}
	r.Nonce = nonce
	return r, nil
}
