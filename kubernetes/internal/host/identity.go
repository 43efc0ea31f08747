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
	"fmt"
	"math/big"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/pool"
)

// identity is the key of this process with a self-signed certificate. Hosts recognise each other by their certificates. Each
// host writes the checksum of its certificate into its Lease and into its offers, and an admission policy lets no other pod
// write the Lease. The key never leaves the process, so the other side of a connection learns nothing that it could use
// elsewhere.
type identity struct {
	certificate tls.Certificate
	fingerprint string // SHA-256 of the certificate.
}

func newIdentity() (identity, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return identity{}, err
	}
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(100, 0, 0), DNSNames: []string{"hinit-fleet"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return identity{}, err
	}
	return identity{tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, certificateSum(der)}, nil
}

func certificateSum(der []byte) string {
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}

// hasFingerprint reports whether the other side of a connection has the certificate with this checksum.
func hasFingerprint(c *tls.ConnectionState, sum string) bool {
	return c != nil && len(c.PeerCertificates) > 0 && certificateSum(c.PeerCertificates[0].Raw) == sum
}

// certificateOf returns the checksum of the certificate of another host, from its Lease.
func (s *Settings) certificateOf(ctx context.Context, host string) (sum string, err error) {
	l := &coordinationv1.Lease{}
	if err := s.API.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: pool.LeaseName(host)}, l); err != nil {
		return "", fmt.Errorf("cannot read Lease %q: %w", pool.LeaseName(host), err)
	}
	return l.Annotations[pool.CertificateAnnotation], nil
}

// assertPolicies returns an error if the API server lets this host begin a move of p, or write the Lease of another host. If
// it does, an admission policy is missing, and an attacker in any host could get every profile of the namespace. The requests
// to find this out are dry runs.
func (h *host) assertPolicies(ctx context.Context, p *v1alpha1.AgentProfile) error {
	limited, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	// No pod of a pool has this name.
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: h.settings.Namespace, Name: pool.LeaseName("none")}}
	next := p.DeepCopy()
	next.Status.Move.To = h.settings.Name
	for policy, err := range map[string]error{
		"hinit-fleet-lease": h.settings.API.Create(limited, l, client.DryRunAll),
		"hinit-fleet-host":  h.settings.API.Status().Patch(limited, next, client.MergeFrom(p), client.DryRunAll),
	} {
		answer := "success"
		if err != nil {
			answer = err.Error()
		}
		if strings.Contains(answer, "ValidatingAdmissionPolicy '"+policy+"'") {
			continue
		}
		err = fmt.Errorf("cannot give profile %q away, because any host could take it: the ValidatingAdmissionPolicy %s has not denied a request (%s); apply deploy/fleet", p.Name, policy, answer)
		return h.reportMoveError(ctx, p, err, true)
	}
	return nil
}
