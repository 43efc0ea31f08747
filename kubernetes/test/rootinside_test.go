package test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hinit/kubernetes/internal/cluster"
)

// TestRootInsideIsAnotherUserOutside checks that root in a sandbox with a user namespace can access
// neither the node's files nor the agents'.
func TestRootInsideIsAnotherUserOutside(t *testing.T) {
	cluster.SkipIfShort(t)
	b := withServer(t)
	if b.WhyNoNodes == "" && !b.HasMappedRuntime() {
		t.Skip("no runc that maps ids of mounts was built; apt-get install gcc pkg-config libseccomp-dev, and make test-kubernetes")
	}
	b.runtimeClass(cluster.MappedRuntime)
	a := withSandboxes(t, "HINIT_SANDBOX_ROOT=private", "HINIT_SANDBOX_KUBERNETES_RUNTIME="+cluster.MappedRuntime)
	a.mustRun("label", "--overwrite", "namespace", manifestNamespace, "pod-security.kubernetes.io/enforce=baseline")
	own := a.volumes(2, corev1.ReadWriteOnce) // Volumes that only the sandbox mounts.
	id := a.createdID(a.runSandbox("hermes-0000000f"))
	if r := a.shellIn(id, "id -u; echo root > file; stat -c %u file; mkdir /etc/mine && chown 1000 /etc/mine && stat -c %u /etc/mine"); r.output != "0\n0\n1000\n" {
		t.Error(r)
	}
	if r := a.shellIn(id, "set -- $(cat /proc/self/uid_map); [ $1 = 0 ] && [ $2 != 0 ] && echo mapped"); r.output != "mapped\n" {
		t.Error("root inside is root of the node:", r)
	}
	a.filesOfRoot(t, id, own)
	if users := a.mustRun("get", "pod", objectName("hermes-0000000f"), "-o", "jsonpath={.spec.hostUsers}"); users != "false" {
		t.Error("hostUsers is", users)
	}
	if claims := a.mustRun("get", "pod", objectName("hermes-0000000f"), "-o", "jsonpath={.spec.volumes[*].persistentVolumeClaim.claimName}"); claims == "" || strings.Contains(claims, "agents-data") {
		t.Error("the claims of the sandbox:", claims)
	}
	if out := a.mustRun("logs", "agents-0", "-c", "sandboxes"); !strings.Contains(out, "sandboxes have users of their own (hostUsers: false)") {
		t.Error(out)
	}
}

// runtimeClass creates the RuntimeClass of a handler, with the same name.
func (b *testBed) runtimeClass(handler string) {
	b.Helper()
	b.apply(&nodev1.RuntimeClass{TypeMeta: metav1.TypeMeta{APIVersion: "node.k8s.io/v1", Kind: "RuntimeClass"}, ObjectMeta: metav1.ObjectMeta{Name: handler}, Handler: handler})
	b.Cleanup(func() { b.mustRun("delete", "runtimeclass", handler) })
}

// filesOfRoot creates files as root in the sandbox that would give rights outside: set-user-id
// programs, devices and links. None may reach the agents' volume, and none may be a device.
func (a *agentPod) filesOfRoot(t *testing.T, id string, own []string) {
	t.Helper()
	a.shellIn(id, `for d in /root /workspace; do
		cp /bin/busybox $d/suid; chown 0:0 $d/suid; chmod 6755 $d/suid
		mknod $d/disk b 8 0; mknod $d/null c 1 3; mkfifo $d/pipe; ln /etc/passwd $d/link; ln -s / $d/way; chown 0:105 $d/way; done`)
	made := 0
	for _, dir := range append([]string{a.volume}, own...) {
		err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
			var st unix.Stat_t
			if err := errors.Join(err, unix.Lstat(path, &st)); err != nil {
				return err
			}
			made += map[bool]int{true: 1}[info.Name() == "suid"]
			planted := dir == a.volume && slices.Contains([]string{"suid", "link", "way"}, info.Name())
			if info.Mode()&os.ModeDevice != 0 || planted {
				t.Errorf("there is %v of %d:%d at %s", info.Mode(), st.Uid, st.Gid, path)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	if made != 2 {
		t.Errorf("root inside has made %d files with set-user-id, and not 2", made)
	}
	for claim := range strings.FieldsSeq(a.mustRun("get", "persistentvolumeclaims", "-o", "jsonpath={.items[*].metadata.name}")) {
		other := a.mustRun("get", "pod", "agents-0", "-o", "jsonpath={.spec.volumes[*].persistentVolumeClaim.claimName}")
		if strings.Contains(other, claim) != (claim == "agents-data") {
			t.Errorf("the pod of the agents mounts %s, and there is %s", other, claim)
		}
	}
	a.shellIn(id, "kill -9 -1")
	a.consistently(2*time.Second, func() string {
		return map[bool]string{false: "the agents' pod is not Ready"}[isPodReady(a.pod("agents-0"))]
	})
	a.eventually("the sandbox works again", func() string {
		if r := a.shellIn(id, "true"); r.exitCode != 0 {
			a.docker("start", id)
			return r.String()
		}
		return ""
	})
}
