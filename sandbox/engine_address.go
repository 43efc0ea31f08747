package sandbox

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// address is where an engine listens.
type address struct {
	host    string
	certDir string // directory with the certificates for the connection; "" for none
}

func defaultSockets() []string {
	list := []string{"/var/run/docker.sock", "/run/docker.sock"}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		list = append(list, dir+"/docker.sock", dir+"/podman/podman.sock")
	}
	return append(list, "/run/podman/podman.sock")
}

// findEngine returns the address of an engine, in the same way as the docker command. host is an address; if it is empty,
// findEngine uses DOCKER_HOST, the current docker context, or a default socket.
func findEngine(host string) (address, error) {
	if host = cmp.Or(host, os.Getenv("DOCKER_HOST")); host != "" {
		at := address{host: host}
		if os.Getenv("DOCKER_TLS_VERIFY") != "" && strings.HasPrefix(host, "tcp:") {
			at.certDir = cmp.Or(os.Getenv("DOCKER_CERT_PATH"), dockerConfigPath(""))
		}
		return checkAddress(at, "DOCKER_HOST")
	}
	if name := contextName(); name != "" && name != "default" {
		at, err := contextAddress(name)
		if err != nil {
			return address{}, fmt.Errorf("cannot use the docker context %q: %w", name, err)
		}
		return checkAddress(at, "the docker context "+name)
	}
	for _, path := range defaultSockets() {
		if info, err := os.Stat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
			return address{host: "unix://" + path}, nil
		}
	}
	return address{}, fmt.Errorf("%w: there is no socket at %s; start an engine, or set DOCKER_HOST", ErrNoEngine, strings.Join(defaultSockets(), ", "))
}

func checkAddress(at address, from string) (address, error) {
	scheme, rest, ok := strings.Cut(at.host, "://")
	switch {
	case !ok || rest == "":
		return address{}, &OptionError{Name: from, Value: at.host, Want: "an address such as unix:///run/docker.sock or tcp://host:2376"}
	case scheme == "ssh":
		return address{}, &OptionError{Name: from, Value: at.host, Want: "a unix or tcp address; for ssh, forward the socket first: ssh -L /tmp/docker.sock:/run/docker.sock host"}
	case scheme != "unix" && scheme != "tcp" && scheme != "http" && scheme != "https":
		return address{}, &OptionError{Name: from, Value: at.host, Want: "a unix or tcp address"}
	}
	return at, nil
}

func dockerConfigPath(name string) string {
	home, _ := os.UserHomeDir()
	return filepath.Join(cmp.Or(os.Getenv("DOCKER_CONFIG"), filepath.Join(home, ".docker")), name)
}

// contextName returns the name of the docker context that `docker context use` has selected, or "".
func contextName() string {
	var config struct {
		CurrentContext string `json:"currentContext"`
	}
	data, _ := os.ReadFile(dockerConfigPath("config.json"))
	_ = json.Unmarshal(data, &config) // Ignore the error: an unreadable file selects no context.
	return cmp.Or(os.Getenv("DOCKER_CONTEXT"), config.CurrentContext)
}

// contextAddress returns the address in a docker context. Docker names the directory of a context after the SHA-256 of the
// context's name.
func contextAddress(name string) (address, error) {
	id := fmt.Sprintf("%x", sha256.Sum256([]byte(name)))
	data, err := os.ReadFile(dockerConfigPath("contexts/meta/" + id + "/meta.json"))
	if err != nil {
		return address{}, err
	}
	var meta struct {
		Endpoints map[string]struct {
			Host string `json:"Host"`
		} `json:"Endpoints"`
	}
	if err := json.Unmarshal(data, &meta); err != nil {
		return address{}, err
	}
	at := address{host: meta.Endpoints["docker"].Host}
	if at.host == "" {
		return address{}, errors.New("it has no address of a Docker engine")
	}
	tls := dockerConfigPath("contexts/tls/" + id + "/docker")
	if _, err := os.Stat(tls + "/ca.pem"); err == nil {
		at.certDir = tls
	}
	return at, nil
}

// shortID returns the first 12 characters of a container's id, as docker prints it.
func shortID(id string) string { return id[:min(12, len(id))] }
