package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/pool"
	"hinit/profiles"
	"hinit/profiles/manage"
)

// Environment variables of a host, described in docs/reference/environment.md.
const (
	nameVar      = "HINIT_FLEET_HOST"
	uidVar       = "HINIT_FLEET_UID"
	namespaceVar = "HINIT_FLEET_NAMESPACE"
	poolVar      = "HINIT_FLEET_POOL"
	addressVar   = "HINIT_FLEET_ADDRESS"
)

// InPod returns the settings of the host in this pod. lookup returns an environment variable, and home is the root directory of
// the volume.
func InPod(lookup func(string) string, home string, init Init, log *slog.Logger) (Settings, error) {
	s := Settings{
		Name: lookup(nameVar), UID: lookup(uidVar), Namespace: lookup(namespaceVar), Pool: lookup(poolVar), Address: lookup(addressVar),
		Home: home, Init: init, Log: log,
	}
	homes := profiles.Open(home, nil, "")
	s.Create = func(_ context.Context, name string) error { return manage.Create(homes, name) }
	ctrllog.SetLogger(logr.FromSlogHandler(log.Handler()))
	var problems []error
	for name, value := range map[string]string{nameVar: s.Name, uidVar: s.UID, namespaceVar: s.Namespace, poolVar: s.Pool, addressVar: s.Address} {
		if value == "" {
			problems = append(problems, fmt.Errorf("cannot be a host: %s is not set; let an AgentPool make the pod", name))
		}
	}
	server, port := lookup("KUBERNETES_SERVICE_HOST"), lookup("KUBERNETES_SERVICE_PORT")
	if server == "" || port == "" {
		problems = append(problems, errors.New("cannot find the API server: KUBERNETES_SERVICE_HOST or KUBERNETES_SERVICE_PORT is not set; run this program in a pod"))
	}
	if len(problems) > 0 {
		return s, errors.Join(problems...)
	}
	config := &rest.Config{
		Host: "https://" + net.JoinHostPort(server, port), BearerTokenFile: filepath.Join(pool.CredentialsDir, "token"), UserAgent: "hinit-fleet-host", QPS: 20, Burst: 100,
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(pool.CredentialsDir, "ca.crt")},
	}
	var err error
	if s.API, err = client.NewWithWatch(config, client.Options{Scheme: v1alpha1.Scheme()}); err != nil {
		return s, fmt.Errorf("cannot make a client of the API server: %w", err)
	}
	s.Address = net.JoinHostPort(s.Address, strconv.Itoa(pool.MovePort))
	return s, nil
}
