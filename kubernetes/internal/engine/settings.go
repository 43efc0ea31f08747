package engine

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"

	"hinit/client/dial"
	"hinit/internal/config"
)

// paths are the paths of files that the service shares with the containers of its callers.
type paths struct {
	socket string // Socket of the sandbox service.
	config string // Path of hinit.yaml, which lists the isolated profiles.
}

// Settings are the operator's configuration for sandboxes on a cluster.
type Settings struct {
	Namespace string
	Pod       string // Name of this process's pod; "" outside of a pod.
	Container string // name of this process's container in the pod
	Image     string // Image with hinit-sandbox-kubernetes and the helper; "" for this process's image.
	Owner     string // ConfigMap that owns all sandboxes. The cluster deletes them with it.
	Paths     paths  // paths of shared files in the container of this process
	Kind      string // Pod or Sandbox; "" for Sandbox if the cluster has that kind, otherwise Pod

	Runtime       string // RuntimeClass of sandboxes; "" for the cluster's default
	HostUsers     string // Value of hostUsers in pods: "true" or "false". "" means false if the nodes support user namespaces.
	PullPolicy    string
	PullSecrets   []string
	CPU, Memory   resource.Quantity // CPU time and memory that a sandbox requests.
	Disk          resource.Quantity // maximum disk space of a sandbox on its node
	VolumeSize    resource.Quantity // size of a volume
	StorageClass  string            // StorageClass of volumes; "" for the cluster's default
	IdleTime      time.Duration     // Idle time after which a sandbox is suspended; 0: never. Background jobs count as use.
	ExpireAfter   time.Duration     // Time after which the cluster deletes a Sandbox that no service renews; 0: never.
	WarmSandboxes int               // Number of ready Sandboxes in each warm pool.

	API *rest.Config
}

// prefix is the beginning of the names of the environment variables for the settings.
const (
	prefix = "HINIT_SANDBOX_KUBERNETES_"

	defaultCredentials = "/run/secrets/hinit-sandbox" //nolint:gosec // the value is a directory, not a secret
	hostVar            = "KUBERNETES_SERVICE_HOST"
	portVar            = "KUBERNETES_SERVICE_PORT"
	configVar          = "HINIT_CONFIG"
)

// ReadSettings reads the settings from environment variables. The error joins all problems.
func ReadSettings(lookup func(string) string) (Settings, error) {
	var problems []error
	bad := func(name, value, expected string) {
		problems = append(problems, fmt.Errorf("cannot use %s=%q: it must be %s", name, value, expected))
	}
	get := func(name, otherwise string) string { return cmp.Or(lookup(prefix+name), otherwise) }
	name := func(key string) string {
		value := get(key, "")
		if value != "" && len(validation.IsDNS1123Subdomain(value)) > 0 {
			bad(prefix+key, value, "the name of an object")
		}
		return value
	}
	word := func(key, otherwise string, words ...string) string {
		value := get(key, otherwise)
		if value != "" && !slices.Contains(words, value) {
			bad(prefix+key, value, strings.Join(words, " or "))
		}
		return value
	}
	size := func(key, otherwise string) resource.Quantity {
		q, err := resource.ParseQuantity(get(key, otherwise))
		if err != nil || q.Sign() <= 0 {
			bad(prefix+key, get(key, otherwise), "a quantity above zero, such as 100m or 1Gi")
			return resource.Quantity{}
		}
		return q
	}
	span := func(key, otherwise string, least time.Duration) time.Duration {
		d, err := time.ParseDuration(get(key, otherwise))
		if err != nil || d < 0 || d > 0 && d < least {
			bad(prefix+key, get(key, otherwise), fmt.Sprintf("a time of at least %v, or 0", least))
		}
		return d
	}
	s := Settings{
		Namespace: name("NAMESPACE"), Pod: name("POD"), Container: get("CONTAINER", "sandboxes"), Image: get("IMAGE", ""), Owner: name("OWNER"),
		Kind: word("KIND", "", "Pod", "Sandbox"), Runtime: name("RUNTIME"), HostUsers: word("HOST_USERS", "", "true", "false"),
		PullPolicy: word("PULL_POLICY", "", "Always", "IfNotPresent", "Never"),
		CPU:        size("CPU", "10m"), Memory: size("MEMORY", "64Mi"), Disk: size("DISK", "10Gi"), VolumeSize: size("STORAGE", "1Gi"), StorageClass: name("STORAGE_CLASS"),
		IdleTime: span("IDLE", "24h", 10*time.Second), ExpireAfter: span("EXPIRE", "168h", time.Minute),
	}
	s.Paths.socket = dial.SandboxSocket(func(name string) (string, bool) { return lookup(name), true })
	s.Paths.config = cmp.Or(lookup(configVar), config.DefaultPath)
	var err error
	if s.WarmSandboxes, err = strconv.Atoi(get("WARM", "0")); err != nil || s.WarmSandboxes < 0 || s.WarmSandboxes > maxWarm {
		bad(prefix+"WARM", get("WARM", "0"), fmt.Sprintf("a number from 0 to %d", maxWarm))
	}
	for secret := range strings.SplitSeq(get("PULL_SECRETS", ""), ",") {
		if secret = strings.TrimSpace(secret); secret != "" {
			s.PullSecrets = append(s.PullSecrets, secret)
		}
	}
	if s.Pod == "" && s.Image == "" {
		bad(prefix+"POD", "", "the name of this pod, by the downward API (fieldPath: metadata.name)")
	}
	problems = append(problems, s.connect(lookup, get("CREDENTIALS", defaultCredentials), bad))
	return s, errors.Join(problems...)
}

// maxWarm is the largest allowed value of Settings.WarmSandboxes.
const maxWarm = 64

var imagePattern = regexp.MustCompile(`^[^\s]+$`)

// connect sets the address of the API server and the path of the token.
func (s *Settings) connect(lookup func(string) string, dir string, bad func(name, value, expected string)) error {
	if !filepath.IsAbs(dir) {
		bad(prefix+"CREDENTIALS", dir, "an absolute path")
	}
	if s.Image != "" && !imagePattern.MatchString(s.Image) {
		bad(prefix+"IMAGE", s.Image, "an image")
	}
	host, port := lookup(hostVar), lookup(portVar)
	if host == "" || port == "" {
		return fmt.Errorf("cannot find the API server: %s or %s is not set; run the service of sandboxes in a pod", hostVar, portVar)
	}
	if s.Namespace == "" {
		text, err := os.ReadFile(filepath.Join(dir, "namespace"))
		if err != nil {
			return fmt.Errorf("cannot tell the namespace of sandboxes: %w; only the service of sandboxes has a token: see its container's log", err)
		}
		s.Namespace = strings.TrimSpace(string(text))
	}
	s.API = &rest.Config{
		Host: "https://" + net.JoinHostPort(host, port), BearerTokenFile: filepath.Join(dir, "token"), UserAgent: "hinit-sandbox-kubernetes", QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(dir, "ca.crt")},
	}
	return nil
}
