package test

import (
	"context"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"hinit/kubernetes/test/agentsandbox"
)

// startController defines the kinds and runs the controller until the end of the test.
func (b *bench) startController(t *testing.T, extended bool) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", b.Config)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1 // by default it asks five times a second
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	c := agentsandbox.New(objects, core)
	var more *extensions
	kinds, definitions := []string{"crd/sandboxes.agents.x-k8s.io"}, agentsandbox.Definition
	if extended {
		more = newExtensions(c, objects)
		for name, spec := range extensionKinds {
			kinds, definitions = append(kinds, "crd/"+name+".extensions.agents.x-k8s.io"), definitions+definition(name, spec)
		}
	}
	if r := b.feed(definitions, "apply", "-f", "-"); r.code != 0 {
		t.Fatal(r)
	}
	b.must(append([]string{"wait", "--for=condition=Established", "--timeout=1m"}, kinds...)...)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	t.Cleanup(func() {
		cancel()
		<-done
		b.must(append([]string{"delete", "--timeout=2m"}, kinds...)...)
	})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if more != nil {
				more.all(ctx)
			}
			c.All(ctx)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
}

// TestASandboxOfTheClustersKind: where agent-sandbox is installed, the docker command makes Sandboxes. They are suspended when they are idle, come
// back, and expire where no service looks after them.
func TestASandboxOfTheClustersKind(t *testing.T) {
	b := withServer(t)
	b.startController(t, false)
	a := withSandboxes(t, "HINIT_SANDBOX_KUBERNETES_IDLE=10s", "HINIT_SANDBOX_KUBERNETES_EXPIRE=1m")
	const name = "hermes-0000000c"
	began := time.Now()
	id := a.made(a.run(name))
	t.Logf("made in %v", time.Since(began))
	mode := func() string {
		return a.must("get", "sandboxes.agents.x-k8s.io", object(name), "-o", "jsonpath={.spec.operatingMode} {.spec.shutdownPolicy}")
	}
	if r := a.sh(id, "echo kept > file; echo gone > /tmp/file"); r.code != 0 || mode() != "Running Delete" {
		t.Error(r, mode())
	}
	a.must("delete", "pod", object(name))
	a.until("the cluster has made another pod", func() string {
		if r := a.sh(id, "cat file"); r.out != "kept\n" {
			a.docker("start", id)
			return r.String()
		}
		return ""
	})
	if r := a.docker("stop", id); r.code != 0 || mode() != "Suspended Delete" {
		t.Error(r, mode())
	}
	a.gone(name)
	if r := a.sh(id, "true"); r.code != 1 || !strings.Contains(r.out, "is not running (the sandbox is suspended)") {
		t.Error(r)
	}
	began = time.Now()
	if r := a.docker("start", id); r.code != 0 {
		t.Fatal(r)
	}
	t.Logf("resumed in %v", time.Since(began))
	if r := a.sh(id, "cat file; ls /tmp/file"); r.code == 0 || !strings.Contains(r.out, "kept\n") {
		t.Error(r)
	}
	first := a.must("get", "sandboxes.agents.x-k8s.io", object(name), "-o", "jsonpath={.spec.shutdownTime}")
	if r := a.sh(id, "sleep 12; echo over"); r.out != "over\n" || mode() != "Running Delete" {
		t.Error("a command runs, and the sandbox counts as idle:", r, mode())
	}
	a.until("idle and suspended", func() string {
		if m := mode(); m != "Suspended Delete" {
			return m
		}
		return ""
	})
	a.gone(name)
	if r := a.docker("start", id); r.code != 0 {
		t.Error(r)
	}
	a.until("its end has moved", func() string {
		if now := a.must("get", "sandboxes.agents.x-k8s.io", object(name), "-o", "jsonpath={.spec.shutdownTime}"); now > first {
			return ""
		}
		return first
	})
	a.must("delete", "statefulset", "agents") // the service is gone for good, and nothing owns up to the sandbox
	until, err := time.Parse(time.RFC3339, a.must("get", "sandboxes.agents.x-k8s.io", object(name), "-o", "jsonpath={.spec.shutdownTime}"))
	if left := time.Until(until); err != nil || left > time.Minute {
		t.Errorf("it expires in %v: %v", left, err)
	}
	a.must("patch", "sandboxes.agents.x-k8s.io", object(name), "--type=merge", "-p", `{"spec": {"shutdownTime": "`+time.Now().UTC().Format(time.RFC3339)+`"}}`) // it expires now
	a.until("expired", func() string { return a.must("get", "sandboxes.agents.x-k8s.io", "-o", "name") })
	a.gone(name)
}
