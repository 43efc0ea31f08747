package test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/cluster"
)

const (
	fleetTutorial  = "../../docs/tutorial/your-first-fleet.md"
	fleetNamespace = "fleet"
)

// withFleet returns a cluster with two nodes for a fleet. dir holds the manifests and hinit-fleet.
// The controller ends with the test.
func withFleet(t *testing.T, hosts int) (b *testBed, dir string) {
	t.Helper()
	b = withServer(t)
	if b.WhyNoNodes != "" {
		t.Skip(b.WhyNoNodes)
	}
	b.ns = fleetNamespace
	b.startSecondNode()
	// All other volumes are in memory, which counts as memory of the pods.
	if err := errors.Join(os.MkdirAll("/run/volumes", 0o755), unix.Mount(t.TempDir(), "/run/volumes", "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount("/run/volumes", unix.MNT_DETACH) })
	b.volumes(hosts, corev1.ReadWriteOnce)
	dir = t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "deploy"), os.DirFS("../deploy")); err != nil {
		t.Fatal(err)
	}
	programs, err := filepath.Glob("../../dist/linux-*/hinit-fleet")
	if err != nil || len(programs) == 0 {
		t.Fatal("no hinit-fleet in dist; make build-kubernetes")
	}
	program, err := filepath.Abs(programs[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", filepath.Dir(program)+":"+os.Getenv("PATH"))
	t.Cleanup(func() {
		if t.Failed() {
			fmt.Fprintln(os.Stderr, b.run("get", "all,agentpools,agentprofiles,events,pvc").output)
			fmt.Fprintln(os.Stderr, b.run("describe", "pods").output)
			fmt.Fprintln(os.Stderr, b.run("logs", "--all-pods", "--prefix", "--tail=30", "-l", v1alpha1.PoolLabel).output)
			fmt.Fprintln(os.Stderr, b.run("-n", "hinit-fleet", "logs", "--all-pods", "--prefix", "--tail=30", "-l", "app.kubernetes.io/name=hinit-fleet-controller").output)
		}
		b.mustRun("delete", "agentprofiles", "--all", "--timeout=3m")
		b.mustRun("delete", "agentpools", "--all", "--timeout=1m")
		b.mustRun("delete", "pods", "--all", "--grace-period=1", "--timeout=3m")
		// Delete the namespaces, because a full run creates them again.
		b.mustRun("delete", "namespace", fleetNamespace, "hinit-fleet", "--timeout=3m", fmt.Sprint("--wait=", !testing.Short()))
	})
	return b, dir
}

// TestTheFirstFleet checks the commands of the tutorial.
func TestTheFirstFleet(t *testing.T) {
	b, dir := withFleet(t, 3)
	text, err := os.ReadFile(fleetTutorial)
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(text), "```yaml\n")
	if len(blocks) != 3 {
		t.Fatalf("the page has %d manifests", len(blocks)-1)
	}
	for i, name := range []string{"kustomization.yaml", "fleet.yaml"} {
		manifest, _, _ := strings.Cut(blocks[i+1], "```")
		if err := os.WriteFile(filepath.Join(dir, name), []byte(manifest), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	typed := 0
	page := consoleBlock.ReplaceAllStringFunc(string(text), func(block string) string {
		var out strings.Builder
		out.WriteString("```console\n")
		for _, step := range strings.Split("\n"+consoleBlock.FindStringSubmatch(block)[1], "\n$ ")[1:] {
			command, want, _ := strings.Cut(step, "\n")
			got := b.shell(dir, command)
			typed++
			fmt.Fprintf(&out, "$ %s\n%s", command, got)
			for line := range strings.SplitSeq(strings.TrimSpace(want), "\n") {
				if !*updatePages && !strings.Contains(maskVariable(got), maskVariable(line)) {
					t.Errorf("%s prints\n%sand not %q", command, got, line)
				}
			}
		}
		return out.String() + "```"
	})
	if typed < 15 {
		t.Errorf("the page has only %d commands", typed)
	}
	if *updatePages && !t.Failed() {
		if err := os.WriteFile(fleetTutorial, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// peakMemory returns the peak memory of a process, in MB (proc_pid_status(5)).
func peakMemory(pid int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // The process may have ended.
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	kb := 0
	_, _ = fmt.Sscan(rest, &kb)
	return kb / 1024
}

// TestSixtyAgentsOnThreeHosts runs sixty real gateways through moves, a drain, a lost host and a
// rollout. No profile may have two gateways, and each gateway must answer or its status must
// explain why not.
func TestSixtyAgentsOnThreeHosts(t *testing.T) {
	cluster.SkipIfShort(t)
	const n = 60
	b, dir := withFleet(t, 3)
	kustomization := "resources: [deploy/fleet]\nimages: [{name: hinit-demo, newName: registry.example.org/hermes-hinit, newTag: \"1\"}]\n"
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o600); err != nil {
		t.Fatal(err)
	}
	b.shell(dir, "kubectl apply -k . && kubectl create namespace fleet && kubectl label namespace fleet pod-security.kubernetes.io/enforce=restricted")
	b.shell(dir, "kubectl -n hinit-fleet rollout status deployment/hinit-fleet-controller --timeout=3m")
	objects := []any{&v1alpha1.AgentPool{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "AgentPool"}, ObjectMeta: metav1.ObjectMeta{Name: "agents", Namespace: fleetNamespace},
		Spec: v1alpha1.AgentPoolSpec{
			Image: "registry.example.org/hermes-hinit:1", Hosts: v1alpha1.HostRange{Min: 3, Max: 3}, ProfileMemory: resource.MustParse("15Mi"),
			Resources: v1alpha1.HostResources{Memory: resource.MustParse("512Mi"), CPU: resource.MustParse("50m")}, Volume: v1alpha1.HostVolume{Size: resource.MustParse("1Gi")},
		},
	}}
	var names []string
	ports := map[string]int{}
	for i := range n {
		name := fmt.Sprintf("agent%02d", i)
		names, ports[name] = append(names, name), 9000+i
		meta := metav1.ObjectMeta{Name: name, Namespace: fleetNamespace}
		objects = append(objects, &corev1.Secret{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: meta,
			StringData: map[string]string{"API_SERVER_ENABLED": "true", "API_SERVER_PORT": strconv.Itoa(ports[name])},
		}, &v1alpha1.AgentProfile{
			TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "AgentProfile"}, ObjectMeta: meta,
			Spec: v1alpha1.AgentProfileSpec{Pool: "agents", Env: []v1alpha1.SecretName{{Secret: name}}},
		})
	}
	began := time.Now()
	b.apply(objects...)
	serve := func() string {
		list := &v1alpha1.AgentProfileList{}
		if err := b.Get(context.Background(), "/apis/"+v1alpha1.GroupVersion.String()+"/namespaces/"+fleetNamespace+"/agentprofiles", list); err != nil {
			return err.Error()
		}
		running := gatewayPIDs()
		for _, p := range list.Items {
			if !p.Status.Ready || p.Status.Move != nil || len(running[p.Name]) != 1 {
				return fmt.Sprintf("%s: %d gateways, %+v", p.Name, len(running[p.Name]), p.Status)
			}
		}
		return ""
	}
	b.eventually("60 agents ready", serve)
	t.Logf("60 agents ready %.1f s after their objects", time.Since(began).Seconds())
	b.eventually("60 gateways answer", func() string {
		if n := len((&healthPoll{ports: ports}).poll()); n < len(ports) {
			return fmt.Sprintf("%d do", n)
		}
		return ""
	})
	inPod := "kubectl -n fleet exec -c agents $(hinit-fleet status agent07 -n fleet | grep -o 'agents-[0-9]') -- sh -c "
	const big = "/opt/data/profiles/agent07/workspace/big"
	b.shell(dir, inPod+"'head -c 1073741824 /dev/urandom >"+big+"'")
	sum := b.shell(dir, inPod+"'sha256sum "+big+"'")
	down, silent, most := map[string]time.Duration{}, map[string]time.Duration{}, 0
	for _, step := range []struct{ name, command string }{
		{"a move of 1 GB", "hinit-fleet move agent07 $(hinit-fleet status agent07 -n fleet | grep -q agents-0 && echo agents-1 || echo agents-0) -n fleet"},
		{"a drained host", "hinit-fleet drain agents-2 -n fleet && hinit-fleet drain --undo agents-2 -n fleet"},
		{"a killed host", "kubectl -n fleet delete pod agents-0 --force --grace-period=0"},
		{"a new image", "hinit-fleet rollout agents registry.example.org/hermes-hinit:2 -n fleet"},
	} {
		w, a := watchGateways(names...), pollGateways(b.Cluster, ports)
		began := time.Now()
		b.shell(dir, step.command)
		<-time.After(3 * time.Second) // By now, the command has begun.
		b.eventually("60 agents ready after "+step.name, serve)
		gap, _ := w.end()
		t.Logf("%s: %.1f s, no agent without a gateway for longer than %.1f s, %d moments with two", step.name, time.Since(began).Seconds(), gap.Seconds(), w.duplicates)
		if w.duplicates > 0 {
			t.Errorf("serious: %s: %d moments with two gateways of one profile", step.name, w.duplicates)
		}
		mute, who := a.end()
		t.Logf("%s: %d questions; without an answer the statuses said %v; no profile was silent without a reason for longer than %.1f s", step.name, a.polls, a.reasons, mute.Seconds())
		if mute > 10*time.Second { // The status must now say that the host is lost.
			t.Errorf("%s: %s neither answers nor says why for %.1f s", step.name, who, mute.Seconds())
		}
		for _, name := range names {
			down[name] += w.down[name]
			silent[name] += a.unanswered[name]
		}
		for pid, command := range processes() {
			if strings.Contains(command, "hinit-fleet\x00host") {
				most = max(most, peakMemory(pid))
			}
		}
	}
	if now := b.shell(dir, inPod+"'sha256sum "+big+"'"); now != sum {
		t.Errorf("the gigabyte is another one: %s, then %s", sum, now)
	}
	if t.Logf("the program of a host has had at most %d MB", most); most == 0 || most > 128 {
		t.Error("that is no bounded memory for a move of 1 GB")
	}
	t.Log("seconds without a gateway in all: " + seconds(down))
	t.Log("seconds without an answer in all: " + seconds(silent))
}

// TestAPodBecomesAPoolAndComesBack imports the profiles of a pod outside of the fleet, and exports
// one of them. The gateway must never run on both sides.
func TestAPodBecomesAPoolAndComesBack(t *testing.T) {
	cluster.SkipIfShort(t)
	b, dir := withFleet(t, 2)
	const soul, outside = "/opt/data/profiles/coder/SOUL.md", "kubectl -n agents exec -i agents-0 -- "
	for name, text := range map[string]string{
		"kustomization.yaml": "resources: [deploy/fleet, deploy/base]\nimages: [{name: hinit-demo, newName: registry.example.org/hermes-hinit, newTag: \"1\"}]\n",
		"pool.yaml": "apiVersion: agents.hinit.dev/v1alpha1\nkind: AgentPool\nmetadata: {name: pool}\n" +
			"spec: {image: \"registry.example.org/hermes-hinit:1\", hosts: {min: 1, max: 1}, resources: {memory: 256Mi, cpu: 50m}, volume: {size: 1Gi}}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { b.mustRun("delete", "namespace", "agents", "--timeout=3m") })
	b.shell(dir, "kubectl apply -k . && kubectl create namespace fleet && kubectl -n fleet apply -f pool.yaml")
	b.shell(dir, "kubectl -n agents wait pod agents-0 --for=create --timeout=1m && kubectl -n agents wait pod agents-0 --for=condition=Ready --timeout=2m")
	b.shell(dir, outside+"sh -c 'hinit profile create coder && hinit profile create writer && echo learnt >"+soul+" && hinit start coder'")

	b.shell(dir, "hinit-fleet import pool --from '"+outside+"' -n fleet")
	b.shell(dir, "kubectl -n fleet wait agentprofile coder --for=jsonpath='{.status.ready}'=true --timeout=1m")
	if got := b.shell(dir, "kubectl -n fleet exec pool-0 -c agents -- cat "+soul); got != "learnt\n" {
		t.Errorf("in the fleet the soul is %q", got)
	}
	if got := b.shell(dir, "hinit-fleet status -n fleet"); !strings.Contains(got, "Stopped") || len(gatewayPIDs()["coder"]) != 1 {
		t.Errorf("there are gateways %v, and\n%s", gatewayPIDs(), got)
	}
	b.shell(dir, "kubectl -n fleet exec pool-0 -c agents -- sh -c 'echo more >>"+soul+"' && hinit-fleet export coder --to '"+outside+"' -n fleet")
	if got := b.shell(dir, outside+"sh -c 'hinit status coder >/dev/null && cat "+soul+"'"); got != "learnt\nmore\n" || len(gatewayPIDs()["coder"]) != 1 {
		t.Errorf("outside again the soul is %q, with gateways %v", got, gatewayPIDs())
	}
	b.eventually("the object gone", func() string { return b.run("get", "agentprofiles", "coder", "--ignore-not-found").output })
}

// TestAHostIsReachedByItsPoolAloneAndMovesProfiles checks that moves work while the NetworkPolicy of a pool is
// enforced, and that other pods can't reach a host.
func TestAHostIsReachedByItsPoolAloneAndMovesProfiles(t *testing.T) {
	cluster.SkipIfShort(t)
	server := withServer(t)
	if why := server.NoEnforcerReason(); server.WhyNoNodes == "" && why != "" {
		t.Skip(why)
	}
	b, dir := withFleet(t, 2)
	for name, text := range map[string]string{
		"kustomization.yaml": "resources: [deploy/fleet]\nimages: [{name: hinit-demo, newName: registry.example.org/hermes-hinit, newTag: \"1\"}]\n",
		"pool.yaml": "apiVersion: agents.hinit.dev/v1alpha1\nkind: AgentPool\nmetadata: {name: pool}\n" +
			"spec: {image: \"registry.example.org/hermes-hinit:1\", hosts: {min: 2, max: 2}, resources: {memory: 256Mi, cpu: 50m}, volume: {size: 1Gi}}\n---\n" +
			"apiVersion: agents.hinit.dev/v1alpha1\nkind: AgentProfile\nmetadata: {name: coder}\nspec: {pool: pool, pin: pool-0}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b.mustRun("cordon", "node2")
	t.Cleanup(func() { b.mustRun("uncordon", "node2") })
	b.shell(dir, "kubectl apply -k . && kubectl create namespace fleet && kubectl -n fleet apply -f pool.yaml")
	b.shell(dir, "kubectl -n fleet wait agentprofile coder --for=jsonpath='{.status.ready}'=true --timeout=2m")
	b.shell(dir, "kubectl -n fleet wait pod pool-1 --for=condition=Ready --timeout=1m")
	listen := "sh -c 'setsid sh -c \"while true; do echo hello | nc -l -p 8080; done\" >/dev/null 2>&1 </dev/null &'"
	b.shell(dir, "kubectl -n fleet exec pool-1 -c agents -- "+listen)
	address := b.pod("pool-1").Status.PodIP
	reached := func() bool {
		return strings.Contains(b.shell(dir, "kubectl -n fleet exec pool-0 -c agents -- sh -c 'nc -w 2 "+address+" 8080 </dev/null 2>&1; true'"), "hello")
	}
	b.eventually("an agent reaches another pod without a program that enforces", func() string {
		if !reached() {
			return "not yet"
		}
		return ""
	})
	stop, err := b.StartEnforcer(t.Context(), "node1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	b.eventually("the policy holds", func() string {
		if reached() {
			return "an agent reaches another pod"
		}
		return ""
	})
	b.shell(dir, "hinit-fleet move coder pool-1 --timeout 1m -n fleet")
	if reached() {
		t.Error("after the move an agent reaches another pod")
	}
}
