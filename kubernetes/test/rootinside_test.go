package test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hinit/kubernetes/internal/cluster"
)

// TestRootInsideIsAnotherUserOutside: where nodes give user namespaces, commands may be root. Outside they have a user of the
// pod's own, which reaches neither the node's root nor the agents' files.
func TestRootInsideIsAnotherUserOutside(t *testing.T) {
	cluster.InFull(t)
	b := withServer(t)
	if b.LeftOut == "" && !b.Maps() {
		t.Skip("no runc that maps ids of mounts was built; apt-get install gcc pkg-config libseccomp-dev, and make test-kubernetes")
	}
	b.apply(&nodev1.RuntimeClass{TypeMeta: metav1.TypeMeta{APIVersion: "node.k8s.io/v1", Kind: "RuntimeClass"}, ObjectMeta: metav1.ObjectMeta{Name: cluster.MappedRuntime}, Handler: cluster.MappedRuntime})
	t.Cleanup(func() { b.must("delete", "runtimeclass", cluster.MappedRuntime) })
	a := withSandboxes(t, "HINIT_SANDBOX_ROOT=private", "HINIT_SANDBOX_KUBERNETES_RUNTIME="+cluster.MappedRuntime)
	a.must("label", "--overwrite", "namespace", inManifests, "pod-security.kubernetes.io/enforce=baseline")
	a.volumes(2, corev1.ReadWriteOnce) // of the sandbox's own
	id := a.made(a.run("hermes-0000000f"))
	if r := a.sh(id, "id -u; echo root > file; stat -c %u file; mkdir /etc/mine && chown 1000 /etc/mine && stat -c %u /etc/mine"); r.out != "0\n0\n1000\n" {
		t.Error(r)
	}
	if r := a.sh(id, "set -- $(cat /proc/self/uid_map); [ $1 = 0 ] && [ $2 != 0 ] && echo mapped"); r.out != "mapped\n" {
		t.Error("root inside is root of the node:", r)
	}
	if users := a.must("get", "pod", object("hermes-0000000f"), "-o", "jsonpath={.spec.hostUsers}"); users != "false" {
		t.Error("hostUsers is", users)
	}
	if claims := a.must("get", "pod", object("hermes-0000000f"), "-o", "jsonpath={.spec.volumes[*].persistentVolumeClaim.claimName}"); claims == "" || strings.Contains(claims, "agents-data") {
		t.Error("the claims of the sandbox:", claims)
	}
	if out := a.must("logs", "agents-0", "-c", "sandboxes"); !strings.Contains(out, "sandboxes have users of their own (hostUsers: false)") {
		t.Error(out)
	}
}
