package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
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

// podName is the key under which the answer to a TokenReview has the name of the token's pod, in its extra fields.
const podName = "authentication.kubernetes.io/pod-name"

// InPod returns the settings of the host in this pod. lookup returns an environment variable, and home is the root directory of
// the volume.
func InPod(lookup func(string) string, home string, init Init, log *slog.Logger) (Settings, error) {
	s := Settings{
		Name: lookup(nameVar), UID: lookup(uidVar), Namespace: lookup(namespaceVar), Pool: lookup(poolVar), Address: lookup(addressVar),
		Home: home, Init: init, Log: log,
	}
	homes := profiles.Open(home, nil, "")
	s.Create = func(_ context.Context, name string) error {
		_, err := manage.Create(homes, name)
		return err
	}
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
		Host: "https://" + net.JoinHostPort(server, port), BearerTokenFile: filepath.Join(pool.Credentials, "token"), UserAgent: "hinit-fleet-host", QPS: 20, Burst: 100,
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(pool.Credentials, "ca.crt")},
	}
	s.Token = func() (string, error) {
		text, err := os.ReadFile(filepath.Join(pool.Credentials, "peer"))
		return strings.TrimSpace(string(text)), err
	}
	var err error
	if s.API, err = client.NewWithWatch(config, client.Options{Scheme: v1alpha1.Scheme()}); err != nil {
		return s, fmt.Errorf("cannot make a client of the API server: %w", err)
	}
	s.Address = net.JoinHostPort(s.Address, strconv.Itoa(pool.MovePort))
	s.Judge, err = Reviewer(config, s.Namespace, s.Pool)
	return s, err
}

// Reviewer returns a [TokenReviewer] that asks the API server which pod a token belongs to. It rejects the tokens of pods outside
// of the pool.
func Reviewer(config *rest.Config, namespace, name string) (TokenReviewer, error) {
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot make a client of the API server: %w", err)
	}
	return func(ctx context.Context, token string) (string, error) {
		review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{pool.Audience}}}
		review, err := api.AuthenticationV1().TokenReviews().Create(ctx, review, metav1.CreateOptions{})
		switch {
		case err != nil:
			return "", fmt.Errorf("cannot review a token: %w", err)
		case !review.Status.Authenticated:
			return "", fmt.Errorf("cannot review a token: it is not good: %s", review.Status.Error)
		case review.Status.User.Username != "system:serviceaccount:"+namespace+":"+pool.Account(name) || len(review.Status.User.Extra[podName]) != 1:
			return "", errors.New("cannot review a token: it is of no host of this pool")
		}
		return review.Status.User.Extra[podName][0], nil
	}, nil
}
