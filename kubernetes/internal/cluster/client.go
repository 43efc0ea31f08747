package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
)

// newClient returns an HTTP client that authenticates as the administrator.
func (c *Cluster) newClient() (*http.Client, error) {
	pki := filepath.Dir(c.Config)
	pair, err := tls.LoadX509KeyPair(filepath.Join(pki, "admin.crt"), filepath.Join(pki, "admin.key"))
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(filepath.Join(pki, "ca.crt"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, errors.New("no certificate in ca.crt")
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots}}}, nil
}

// Get requests path from the API server and decodes the JSON answer into the value into. If into is nil, it only checks that
// the status is 200. It is about a hundred times faster than kubectl.
func (c *Cluster) Get(ctx context.Context, path string, into any) error {
	client, err := c.admin()
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://127.0.0.1:"+c.port+path, nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	switch {
	case err != nil:
		return err
	case answer.StatusCode != http.StatusOK:
		return statusError(answer.StatusCode)
	case into == nil:
		return nil
	}
	return json.Unmarshal(text, into)
}

// Port returns the port of the API server. The server listens on every address of the network namespace, but its certificate
// is only valid for 127.0.0.1.
func (c *Cluster) Port() string { return c.port }

// CAFile returns the path of the CA certificate that signed the API server's certificate.
func (c *Cluster) CAFile() string { return filepath.Join(filepath.Dir(c.Config), "ca.crt") }

// Kubectl returns a command that runs kubectl as the administrator, with the given arguments.
func (c *Cluster) Kubectl(ctx context.Context, words ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(c.Bin, "kubectl"), words...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Config, "PATH="+c.Bin+":"+os.Getenv("PATH"))
	return cmd
}
