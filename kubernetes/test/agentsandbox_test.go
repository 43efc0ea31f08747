package test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"hinit/kubernetes/internal/cluster"
	"hinit/kubernetes/test/agentsandbox"
)

// startController defines the kinds, and runs the imitated controller until the test ends.
func (b *testBed) startController(t *testing.T, extended bool) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", b.Config)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1 // A negative QPS disables the client's limit of five requests a second.
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
	if r := b.runWithInput(definitions, "apply", "-f", "-"); r.exitCode != 0 {
		t.Fatal(r)
	}
	b.mustRun(append([]string{"wait", "--for=condition=Established", "--timeout=1m"}, kinds...)...)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	t.Cleanup(func() {
		cancel()
		<-done
		b.mustRun(append([]string{"delete", "--timeout=2m"}, kinds...)...)
	})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if more != nil {
				more.all(ctx)
			}
			c.ReconcileAll(ctx)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
}

// TestASandboxOfTheClustersKind checks that docker run creates Sandboxes if agent-sandbox is
// installed. They must be suspended when idle, resume on use, and expire without a service.
func TestASandboxOfTheClustersKind(t *testing.T) {
	b := withServer(t)
	b.startController(t, false)
	a := withSandboxes(t, "HINIT_SANDBOX_KUBERNETES_IDLE=10s", "HINIT_SANDBOX_KUBERNETES_EXPIRE=1m")
	const name = "hermes-0000000c"
	began := time.Now()
	id := a.createdID(a.runSandbox(name))
	t.Logf("made in %v", time.Since(began))
	mode := func() string {
		return a.mustRun("get", "sandboxes.agents.x-k8s.io", objectName(name), "-o", "jsonpath={.spec.operatingMode} {.spec.shutdownPolicy}")
	}
	if r := a.shellIn(id, "echo kept > file; echo gone > /tmp/file"); r.exitCode != 0 || mode() != "Running Delete" {
		t.Error(r, mode())
	}
	a.mustRun("delete", "pod", objectName(name))
	a.eventually("the cluster has made another pod", func() string {
		if r := a.shellIn(id, "cat file"); r.output != "kept\n" {
			a.docker("start", id)
			return r.String()
		}
		return ""
	})
	if r := a.docker("stop", id); r.exitCode != 0 || mode() != "Suspended Delete" {
		t.Error(r, mode())
	}
	a.awaitNoPod(name)
	a.conditions(objectName(name), "Suspended=True/PodTerminated Ready=False/SandboxSuspended")
	if r := a.shellIn(id, "true"); r.exitCode != 1 || !strings.Contains(r.output, "is not running (the sandbox is suspended)") {
		t.Error(r)
	}
	began = time.Now()
	if r := a.docker("start", id); r.exitCode != 0 {
		t.Fatal(r)
	}
	t.Logf("resumed in %v", time.Since(began))
	if r := a.shellIn(id, "cat file; ls /tmp/file"); r.exitCode == 0 || !strings.Contains(r.output, "kept\n") {
		t.Error(r)
	}
	first := a.mustRun("get", "sandboxes.agents.x-k8s.io", objectName(name), "-o", "jsonpath={.spec.shutdownTime}")
	if r := a.shellIn(id, "sleep 12; echo over"); r.output != "over\n" || mode() != "Running Delete" {
		t.Error("a command runs, and the sandbox counts as idle:", r, mode())
	}
	a.eventually("idle and suspended", func() string {
		if m := mode(); m != "Suspended Delete" {
			return m
		}
		return ""
	})
	a.awaitNoPod(name)
	a.linksBelowMounts(t, "hermes-0000002b")
	if r := a.docker("start", id); r.exitCode != 0 {
		t.Error(r)
	}
	a.eventually("its end has moved", func() string {
		if now := a.mustRun("get", "sandboxes.agents.x-k8s.io", objectName(name), "-o", "jsonpath={.spec.shutdownTime}"); now > first {
			return ""
		}
		return first
	})
	a.mustRun("delete", "statefulset", "agents") // Without the service, nothing postpones the expiry.
	until, err := time.Parse(time.RFC3339, a.mustRun("get", "sandboxes.agents.x-k8s.io", objectName(name), "-o", "jsonpath={.spec.shutdownTime}"))
	if left := time.Until(until); err != nil || left > time.Minute {
		t.Errorf("it expires in %v: %v", left, err)
	}
	// A shutdown time in the past makes the Sandbox expire now.
	a.mustRun("patch", "sandboxes.agents.x-k8s.io", objectName(name), "--type=merge", "-p", `{"spec": {"shutdownTime": "`+time.Now().UTC().Format(time.RFC3339)+`"}}`)
	a.eventually("expired", func() string { return a.mustRun("get", "sandboxes.agents.x-k8s.io", "-o", "name") })
	a.awaitNoPod(name)
}

// conditions waits until a Sandbox has these conditions and no others, in any order.
func (b *testBed) conditions(name, want string) {
	b.Helper()
	sorted := func(text string) string {
		words := strings.Fields(text)
		slices.Sort(words)
		return strings.Join(words, " ")
	}
	b.eventually(name+" has "+want, func() string {
		has := b.run("get", "sandboxes.agents.x-k8s.io", name, "-o", `jsonpath={range .status.conditions[*]}{.type}={.status}/{.reason} {end}`).output
		return map[bool]string{false: has + " "}[sorted(has) == sorted(want)]
	})
}

// TestTheExampleOfAgentSandboxRunsOurImage checks that the Sandbox of agent-sandbox's example runs this agent, with its
// claim and Service. It also checks two facts about the imitated controller: a pod ends before Suspended is true, and
// the annotation finds a pod of another name.
func TestTheExampleOfAgentSandboxRunsOurImage(t *testing.T) {
	cluster.SkipIfShort(t)
	b := withNode(t, "example")
	b.startController(t, false)
	b.volumes(1, corev1.ReadWriteOnce)
	if r := b.runWithInput(example, "apply", "-f", "-"); r.exitCode != 0 {
		t.Fatal(r)
	}
	const isReady = "Suspended=False/NotSuspended PodScheduled=True/PodScheduled Ready=True/DependenciesReady"
	b.conditions("hermes", isReady)
	b.eventually("the gateway runs", func() string { return map[bool]string{false: "no"}[len(gatewayPIDs()["default"]) == 1] })
	if r := b.execInPod("hermes", "hermes", "profile", "create", "coder"); r.exitCode != 0 {
		t.Fatal(r)
	}
	if r := b.execInPod("hermes", "hermes", "-p", "coder", "gateway", "start"); r.exitCode != 0 {
		t.Fatal(r)
	}
	selector := `None {"` + agentsandbox.NameHash + `":"` + agentsandbox.HashOf("hermes") + `"}`
	if service := b.mustRun("get", "service", "hermes", "-o", "jsonpath={.spec.clusterIP} {.spec.selector}"); service != selector {
		t.Error("the Service is", service)
	}
	mode := func(to string) {
		b.mustRun("patch", "sandboxes.agents.x-k8s.io", "hermes", "--type=merge", "-p", `{"spec": {"operatingMode": "`+to+`"}}`)
	}
	began := time.Now()
	mode("Suspended")
	b.conditions("hermes", "Suspended=True/PodTerminated Ready=False/SandboxSuspended")
	if p := b.pod("hermes"); p.Name != "" {
		t.Error("it is suspended, and its pod is", p.Status.Phase)
	}
	suspended := time.Since(began)
	if claims := b.mustRun("get", "persistentvolumeclaims", "-o", "name"); claims != "persistentvolumeclaim/data-hermes\n" {
		t.Error("the claims are", claims)
	}
	began = time.Now()
	mode("Running")
	b.conditions("hermes", isReady)
	b.eventually("both gateways run again", func() string {
		has := gatewayPIDs()
		return map[bool]string{false: "no"}[len(has["default"]) == 1 && len(has["coder"]) == 1]
	})
	t.Logf("suspended in %v, resumed in %v", suspended, time.Since(began))

	// An older agent-sandbox took a pod with another name from a warm pool.
	b.mustRun("delete", "sandboxes.agents.x-k8s.io", "hermes", "--wait", "--cascade=foreground")
	other := strings.Replace(example, "{name: hermes}", "{name: hermes, annotations: {"+agentsandbox.PodName+": of-a-pool}}", 1)
	waits := `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "of-a-pool", "labels": {"` + agentsandbox.NameHash + `": "` +
		agentsandbox.HashOf("hermes") + `"}}, "spec": ` + sleepSpec("infinity") + `}`
	for _, text := range []string{waits, other} {
		if r := b.runWithInput(text, "apply", "-f", "-"); r.exitCode != 0 {
			t.Fatal(r)
		}
	}
	b.conditions("hermes", isReady)
	if pods := b.mustRun("get", "pods", "-o", "name"); pods != "pod/of-a-pool\n" {
		t.Error("the pods are", pods)
	}
	mode("Suspended")
	b.conditions("hermes", "Suspended=True/PodTerminated Ready=False/SandboxSuspended")
	if pods := b.mustRun("get", "pods", "-o", "name"); pods != "" {
		t.Error("the pods are", pods)
	}
	short := `{"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "short"}, "spec": {"podTemplate": {"spec": ` +
		sleepSpec("1") + `}}}`
	if r := b.runWithInput(short, "apply", "-f", "-"); r.exitCode != 0 {
		t.Fatal(r)
	}
	b.conditions("short", "Suspended=False/NotSuspended PodScheduled=True/PodScheduled Finished=True/PodSucceeded Ready=False/PodSucceeded")
	b.mustRun("delete", "sandboxes.agents.x-k8s.io", "hermes", "short")
}

// sleepSpec returns the spec of a pod that only sleeps.
func sleepSpec(span string) string {
	return `{"terminationGracePeriodSeconds": 1, "restartPolicy": "Never",
 "securityContext": {"runAsUser": 10000, "runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
 "containers": [{"name": "hermes", "image": "hinit-demo", "imagePullPolicy": "Never", "command": ["sleep", "` + span + `"],
  "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}`
}

const example = `
apiVersion: agents.x-k8s.io/v1beta1
kind: Sandbox
metadata: {name: hermes}
spec:
  service: true
  podTemplate:
    spec:
      terminationGracePeriodSeconds: 20
      securityContext: {runAsUser: 10000, runAsGroup: 10000, fsGroup: 10000, runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
      containers:
      - name: hermes
        image: hinit-demo
        imagePullPolicy: Never
        args: [sleep, infinity]
        env: [{name: HERMES_GATEWAY_BOOTSTRAP_STATE, value: running}]
        securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
        volumeMounts: [{name: data, mountPath: /opt/data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
`
