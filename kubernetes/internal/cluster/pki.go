package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

type certificateAuthority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// certificateSpec is the content of a certificate: its subject (name and group), the hosts for which it is valid, and the name of
// its file.
type certificateSpec struct {
	file, name, group string
	hosts             []string
}

// createCertificates creates the certificates of a cluster in a directory, and a kubeconfig for each client of the API server.
func createCertificates(dir, server string, nodes int) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	ca, err := newAuthority(dir)
	if err != nil {
		return err
	}
	all := []certificateSpec{
		{"apiserver", "kube-apiserver", "", []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost", "127.0.0.1", nodeAddress(1), serviceAddress}},
		{"kubelet-client", "kube-apiserver-kubelet-client", "system:masters", nil},
		{"admin", "admin", "system:masters", nil},
		{"controllers", "system:kube-controller-manager", "", []string{"localhost", "127.0.0.1"}},
		{"scheduler", "system:kube-scheduler", "", []string{"localhost", "127.0.0.1"}},
	}
	for n := 1; n <= nodes; n++ {
		all = append(all, certificateSpec{nodeName(n), "system:node:" + nodeName(n), "system:nodes", []string{nodeName(n), nodeAddress(n)}})
	}
	for _, id := range all {
		if err := ca.issue(id); err != nil {
			return fmt.Errorf("cannot make the certificate of %s: %w", id.file, err)
		}
		config := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority: %s/ca.crt}}]
users: [{name: u, user: {client-certificate: %[2]s/%[3]s.crt, client-key: %[2]s/%[3]s.key}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
`, server, dir, id.file)
		if err := os.WriteFile(filepath.Join(dir, id.file+".kubeconfig"), []byte(config), 0o600); err != nil {
			return err
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	if err := writePEM(filepath.Join(dir, "accounts.pub"), "PUBLIC KEY", public); err != nil {
		return err
	}
	return writeKey(filepath.Join(dir, "accounts.key"), key)
}

func newAuthority(dir string) (*certificateAuthority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	cert := certificateTemplate("hinit-test-cluster")
	cert.IsCA, cert.BasicConstraintsValid, cert.KeyUsage = true, true, x509.KeyUsageCertSign|x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &certificateAuthority{dir, cert, key}, writePEM(filepath.Join(dir, "ca.crt"), "CERTIFICATE", der)
}

func (ca *certificateAuthority) issue(id certificateSpec) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	cert := certificateTemplate(id.name)
	cert.KeyUsage = x509.KeyUsageDigitalSignature
	cert.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	if id.group != "" {
		cert.Subject.Organization = []string{id.group}
	}
	for _, host := range id.hosts {
		if ip := net.ParseIP(host); ip != nil {
			cert.IPAddresses = append(cert.IPAddresses, ip)
		} else {
			cert.DNSNames = append(cert.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		return err
	}
	if err := writePEM(filepath.Join(ca.dir, id.file+".crt"), "CERTIFICATE", der); err != nil {
		return err
	}
	return writeKey(filepath.Join(ca.dir, id.file+".key"), key)
}

// certificateTemplate returns an unsigned certificate for name. It is valid from yesterday, because a test may set its clock back.
func certificateTemplate(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(7 * 24 * time.Hour),
	}
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(path, "EC PRIVATE KEY", der)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
