package lease

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/client-go/rest"
)

// Environment variables of this program, described in docs/reference/environment.md.
const (
	nameVar        = "HINIT_LEASE_NAME"
	namespaceVar   = "HINIT_LEASE_NAMESPACE"
	identityVar    = "HINIT_LEASE_IDENTITY"
	durationVar    = "HINIT_LEASE_DURATION"
	credentialsVar = "HINIT_LEASE_CREDENTIALS"
	socketVar      = "NOTIFY_SOCKET"
	hostVar        = "KUBERNETES_SERVICE_HOST"
	portVar        = "KUBERNETES_SERVICE_PORT"
)

const (
	defaultCredentials = "/run/secrets/hinit-lease"
	defaultDuration    = 15 * time.Second
	maxDuration        = time.Hour
)

// Settings are the settings of this program: the Lease to hold, the pod for which it is held, and the init to inform.
type Settings struct {
	Name, Namespace string
	Identity        string        // Identity of this pod, which no other pod ever has.
	Duration        time.Duration // Duration of the lease, in whole seconds.
	Socket          string        // Path of the socket on which the init receives messages.
	API             *rest.Config
}

var identityPattern = regexp.MustCompile(`^[!-~]{1,200}$`)

// ReadSettings reads the settings from environment variables. The error joins all problems.
func ReadSettings(lookup func(string) string) (Settings, error) {
	var problems []error
	bad := func(name, value, expected string) {
		problems = append(problems, fmt.Errorf("cannot use %s=%q: expected %s", name, value, expected))
	}
	s := Settings{Name: lookup(nameVar), Namespace: lookup(namespaceVar), Identity: lookup(identityVar), Socket: lookup(socketVar), Duration: defaultDuration}
	dir := cmp.Or(lookup(credentialsVar), defaultCredentials)
	if !filepath.IsAbs(dir) {
		bad(credentialsVar, dir, "an absolute path")
	}
	if s.Namespace == "" {
		text, err := os.ReadFile(filepath.Join(dir, "namespace"))
		if err != nil {
			problems = append(problems, fmt.Errorf("cannot tell the namespace of the Lease: %w; set %s, or mount the token of a ServiceAccount on %s", err, namespaceVar, dir))
		}
		s.Namespace = strings.TrimSpace(string(text))
	}
	if len(content.IsDNS1123Subdomain(s.Name)) > 0 {
		bad(nameVar, s.Name, "the name of a Lease, such as agents")
	}
	if s.Namespace != "" && len(content.IsDNS1123Label(s.Namespace)) > 0 {
		bad(namespaceVar, s.Namespace, "the name of a namespace")
	}
	if !identityPattern.MatchString(s.Identity) {
		bad(identityVar, s.Identity, "what no other pod ever has, such as the pod's uid by the downward API (fieldPath: metadata.uid)")
	}
	if text := lookup(durationVar); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d < time.Second || d > maxDuration || d%time.Second != 0 {
			bad(durationVar, text, "whole seconds from 1s to 1h")
		}
		s.Duration = d
	}
	if !filepath.IsAbs(s.Socket) {
		problems = append(problems, errors.New("cannot tell the init of the lease: "+socketVar+" is not set; let hinit start this program (HINIT_LEASE=kubernetes)"))
	}
	host, port := lookup(hostVar), lookup(portVar)
	if host == "" || port == "" {
		problems = append(problems, fmt.Errorf("cannot find the API server: %s or %s is not set; run this program in a pod", hostVar, portVar))
	}
	s.API = &rest.Config{
		Host: "https://" + net.JoinHostPort(host, port), BearerTokenFile: filepath.Join(dir, "token"), UserAgent: "hinit-lease-kubernetes", QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(dir, "ca.crt")},
	}
	return s, errors.Join(problems...)
}
