package fleet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/cluster"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	if credentials := os.Getenv(hostVar); credentials != "" {
		fmt.Fprintln(os.Stderr, "host:", becomeHost(credentials))
		os.Exit(1)
	}
	runControllerIfSet()
	os.Exit(cluster.MainServer(m))
}

// server is the shared API server of all tests, with the fleet's resource kinds.
type server struct {
	*cluster.Cluster
	rest *rest.Config
	api  client.Client
}

const crds = "../../deploy/fleet/crds"

var startServerOnce = sync.OnceValues(func() (*server, error) {
	ctx := context.Background()
	c, left, err := cluster.Start(ctx)
	if err != nil {
		return nil, err
	}
	if c == nil {
		return &server{Cluster: &cluster.Cluster{WhyNoNodes: left}}, nil
	}
	s := &server{Cluster: c}
	if s.rest, err = clientcmd.BuildConfigFromFlags("", c.Config); err != nil {
		return nil, err
	}
	s.rest.QPS, s.rest.Burst = 1000, 2000
	if out, err := c.Kubectl(ctx, "apply", "-f", crds).CombinedOutput(); err != nil {
		return nil, outputError{err, out}
	}
	if out, err := c.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout=1m", "-f", crds).CombinedOutput(); err != nil {
		return nil, outputError{err, out}
	}
	s.api, err = client.New(s.rest, client.Options{Scheme: v1alpha1.Scheme()})
	return s, err
})

// outputError is an error of a command, with the command's output.
type outputError struct {
	error
	out []byte
}

func (e outputError) Error() string { return e.error.Error() + ": " + string(e.out) }

// withServer returns the API server, or skips the test if none runs.
func withServer(t *testing.T) *server {
	t.Helper()
	s, err := startServerOnce()
	if err != nil {
		t.Fatal(err)
	}
	if s.Bin == "" {
		t.Skip(s.WhyNoNodes)
	}
	return s
}

// eventually polls cond until it returns "". cond returns what is missing. The pauses grow with the cost
// of cond, because listing ten thousand profiles needs much processor time.
func eventually(t *testing.T, limit time.Duration, what string, cond func() string) {
	t.Helper()
	missing := ""
	for end := time.Now().Add(limit); time.Now().Before(end); {
		began := time.Now()
		if missing = cond(); missing == "" {
			return
		}
		<-time.After(max(50*time.Millisecond, 4*time.Since(began)))
	}
	t.Fatalf("not %s within %s: %s", what, limit, missing)
}

// TestTheGroupIsTheOneOfTheManifests checks that the API group in the code is the same as in the
// generated manifests.
func TestTheGroupIsTheOneOfTheManifests(t *testing.T) {
	for _, plural := range []string{"agentpools", "agentprofiles"} {
		if _, err := os.Stat(filepath.Join(crds, v1alpha1.Group+"_"+plural+".yaml")); err != nil {
			t.Error(err)
		}
	}
}
