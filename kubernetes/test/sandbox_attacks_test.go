package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// attack is a set of options that an agent adds to its call, and the refusal that it must get.
type attack struct {
	name    string
	options []string
	refusal string
}

const sharedNamespaces = "a namespace of the host or of another container"

// attacks are the calls of test/sandbox/escape_test.go that create a container, and some that only
// a cluster has.
var attacks = []attack{
	{"the host's files", []string{"-v", "/:/host"}, "is not allowed"},
	{"the host's files, in long words", []string{"--mount", "type=bind,source=/,target=/h"}, "is not allowed"},
	{"the files of the agents' image", []string{"-v", "/etc:/etc2"}, "is not allowed"},
	{"the socket of an engine", []string{"-v", "/var/run/docker.sock:/s"}, "a mount of /var/run/docker.sock"},
	{"the sockets of the agents", []string{"-v", "/run:/r"}, "is not allowed"},
	{"the token of the service", []string{"-v", "/run/secrets/hinit-sandbox:/token"}, "is not allowed"},
	{"a path that leads out", []string{"-v", "/opt/data/../../etc:/etc2"}, "is not allowed"},
	{"the whole volume", []string{"-v", "/opt/data:/h"}, "is not allowed"},
	{"an engine's name of a path", []string{"-v", "/claims/agents-data:/x"}, "is not allowed"},
	{"a volume of the cluster", []string{"-v", "agents-data:/x"}, "is not allowed"},
	{"another's volumes", []string{"--volumes-from", "agents-0"}, "--volumes-from=agents-0 is not allowed"},
	{"the mount of the program inside", []string{"--tmpfs", "/.hinit-x"}, "a mount at /.hinit-x"},
	{"the kernel's files", []string{"-v", "/opt/data/x:/proc"}, "a mount at /proc"},
	{"privileges", []string{"--privileged"}, "--privileged is not allowed"},
	{"a capability", []string{"--cap-add", "SYS_ADMIN"}, "the capability SYS_ADMIN"},
	{"all capabilities", []string{"--cap-add", "ALL"}, "the capability ALL"},
	{"the host's processes", []string{"--pid", "host"}, sharedNamespaces},
	{"another's processes", []string{"--pid", "container:agents-0"}, sharedNamespaces},
	{"the host's semaphores", []string{"--ipc", "host"}, sharedNamespaces},
	{"another's semaphores", []string{"--ipc", "container:agents-0"}, sharedNamespaces},
	{"the host's name", []string{"--uts", "host"}, sharedNamespaces},
	{"the host's users", []string{"--userns", "host"}, sharedNamespaces},
	{"the host's control groups", []string{"--cgroupns", "host"}, sharedNamespaces},
	{"a control group", []string{"--cgroup-parent", "/"}, "--cgroup-parent=/ is not allowed"},
	{"the host's network", []string{"--network", "host"}, sharedNamespaces},
	{"another's network", []string{"--network", "container:agents-0"}, sharedNamespaces},
	{"another network", []string{"--network", "database"}, `the network "database" is not allowed`},
	{"a group of the host", []string{"--group-add", "0"}, "the group 0 is not allowed"},
	{"a device", []string{"--device", "/dev/kmsg"}, "the device /dev/kmsg"},
	{"all devices", []string{"--device-cgroup-rule", "a *:* rwm"}, "--device-cgroup-rule=a *:* rwm is not allowed"},
	{"the graphics of the node", []string{"--gpus", "all"}, "--gpus=all is not allowed"},
	{"no seccomp", []string{"--security-opt", "seccomp=unconfined"}, "the security option seccomp=unconfined"},
	{"new privileges", []string{"--security-opt", "no-new-privileges=false"}, "the security option no-new-privileges=false"},
	{"a port of the node", []string{"-p", "80:80"}, "the published port 80:80 is not allowed"},
	{"no end", []string{"--restart", "always"}, "a restart policy is not allowed"},
	{"another's address", []string{"--add-host", "a:1.2.3.4"}, "a host or name server of the caller's choice"},
	{"the last to be killed", []string{"--oom-score-adj", "-1000"}, "--oom-score-adj=-1000 is not allowed"},
	{"an option of the storage", []string{"--storage-opt", "overlay2.override_kernel_check=true"}, "the storage option"},
	{"the engine's socket", []string{"--use-api-socket"}, "--use-api-socket=true is not allowed"},
	{"another runtime", []string{"--runtime", "other"}, `the runtime "other" is not allowed`},
	{"another owner", []string{"--label", "hinit-owner=0"}, "the label hinit-owner is not allowed"},
	{"another profile", []string{"--label", "hermes-profile=other"}, `the profile "other" is not allowed`},
	{"the name of an object that can't be", []string{"--name", "Hermes_x"}, "lower-case letters"},
}

// disallowedImages are disallowed images: by another name, by digest, and by ID.
var disallowedImages = []string{"alpine", "hinit-demo@sha256:" + strings.Repeat("0", 64), strings.Repeat("0", 64)}

// notEmulated are calls that hinit does not emulate.
var notEmulated = [][]string{
	{"run", "-d", "--env-file", "/etc/passwd", "hinit-demo", "sleep", "1"},
	{"cp", "/etc/passwd", "x:/"},
	{"-H", "unix:///var/run/docker.sock", "ps"},
	{"export", "agents-0"},
	{"attach", "agents-0"},
	{"commit", "agents-0"},
	{"plugin", "ls"},
}

// TestAnAgentGetsNoMoreThanASandbox checks the list of docs/explanation/sandbox-security.md on a cluster: what the agent may ask
// for, and what commands in a sandbox can reach.
func TestAnAgentGetsNoMoreThanASandbox(t *testing.T) {
	a := withSandboxes(t)
	var calls [][]string
	for _, attack := range attacks {
		calls = append(calls, runArgs("hermes-0000000d", attack.options...))
	}
	for i, r := range a.dockerEach(calls) {
		if r.exitCode == 0 || !strings.Contains(r.output, attacks[i].refusal) {
			t.Errorf("%s %q: %v", attacks[i].name, attacks[i].options, r)
		}
	}
	calls = nil
	for _, image := range disallowedImages {
		calls = append(calls, []string{"run", "-d", image, "sleep", "infinity"})
	}
	for i, r := range a.dockerEach(calls) {
		if r.exitCode == 0 || !strings.Contains(r.output, "the image \""+disallowedImages[i]+"\" is not allowed") {
			t.Error(r)
		}
	}
	for i, r := range a.dockerEach(notEmulated) {
		if r.exitCode == 0 || !strings.Contains(r.output, "hinit does not support this call") {
			t.Errorf("%q: %v", notEmulated[i], r)
		}
	}
	if err := os.Symlink("/etc", filepath.Join(a.volume, "link")); err != nil {
		t.Fatal(err)
	}
	if r := a.runSandbox("hermes-0000000d", "-v", "/opt/data/link:/x"); r.exitCode == 0 || !strings.Contains(r.output, "is not allowed") {
		t.Error("a link:", r)
	}
	if pods := a.mustRun("get", "pods", "-l", "hinit.dev/sandbox", "-o", "name"); pods != "" {
		t.Error("something was made:", pods)
	}

	id := a.createdID(a.runSandbox("hermes-0000000d", "--user", "0:0"))
	for _, attack := range []struct{ name, line, want string }{
		{"root", "id -u", "10000\n"},
		{"capabilities", "grep CapEff /proc/self/status", "CapEff:\t0000000000000000\n"},
		{"new privileges", "grep NoNewPrivs /proc/self/status", "NoNewPrivs:\t1\n"},
		{"system calls", "grep Seccomp: /proc/self/status", "Seccomp:\t2\n"},
		{"a token", "find / -name token -path '*secrets*' 2>/dev/null | wc -l", "0\n"},
		{"the program inside", "for d in /.hinit-*; do echo x 2>/dev/null > $d/gate || echo no; rm -f $d/gate 2>/dev/null || echo no; done", "no\nno\n"},
		{"other pods' processes", "ls -d /proc/[0-9]* | wc -l | (read n; [ $n -lt 12 ] && echo few)", "few\n"},
		{"the agents' socket", "ls /run/sandboxes /run/hinit 2>/dev/null | wc -l", "0\n"},
		{"a set-user-id program", "cp /bin/busybox id && chmod 6755 id && ./id -u; rm -f id", "10000\n"},
		{"the owner of a file", "cp /bin/busybox given; chown 0:0 given 2>/dev/null || echo no; rm given", "no\n"},
		{"a device of its own", "mknod disk b 8 0 2>/dev/null || echo no", "no\n"},
		{"a name space of its own", "unshare -U true 2>/dev/null || echo no", "no\n"},
		{"devices", "ls /dev | grep -c -e sd -e nvme -e kmsg -e mem", "0\n"},
	} {
		if r := a.shellIn(id, attack.line); !strings.HasPrefix(r.output, attack.want) {
			t.Errorf("%s: %v", attack.name, r)
		}
	}

	agent := func(line string) string {
		return a.run("exec", "agents-0", "-c", "agents", "--", "sh", "-c", line).output
	}
	if out := agent("find / -path /proc -prune -o -name token -print 2>/dev/null"); strings.Contains(out, "token") {
		t.Error("the agents have a token:", out)
	}
	if out := agent("ls -l /proc/[0-9]*/exe 2>/dev/null | grep -c hinit-sandbox-kubernetes"); !strings.HasPrefix(out, "0\n") {
		t.Error("the agents see the service's process:", out)
	}
	as := "--as=system:serviceaccount:agents:agents"
	for _, no := range [][]string{
		{"get", "secrets"},
		{"create", "pods", "--subresource=attach"},
		{"update", "pods", "--subresource=ephemeralcontainers"},
		{"create", "pods", "--subresource=portforward"},
		{"get", "nodes"},
		{"list", "pods", "-n", "kube-system"},
		{"create", "roles"},
		{"create", "serviceaccounts", "--subresource=token"},
		{"update", "statefulsets"},
		{"get", "configmaps/other"},
		{"delete", "networkpolicies"},
		{"create", "pods", "-n", "default"},
		{"update", "pods"},
	} {
		if r := a.run(append([]string{"auth", "can-i", as}, no...)...); !strings.HasPrefix(r.output, "no") && !strings.Contains(r.output, "\nno") {
			t.Errorf("the service may %v: %v", no, r)
		}
	}
	spec := a.mustRun("get", "pod", objectName("hermes-0000000d"), "-o", "jsonpath={.metadata.labels.hinit\\.dev/network} {.spec.automountServiceAccountToken} {.metadata.ownerReferences[0].kind} {.spec.securityContext.seccompProfile.type}")
	if spec != "default false ConfigMap RuntimeDefault" {
		t.Error("the pod has", spec)
	}
	a.docker("rm", "-f", id)
	a.createdID(a.runSandbox("hermes-0000000e", "--network", "none"))
	if label := a.mustRun("get", "pod", objectName("hermes-0000000e"), "-o", "jsonpath={.metadata.labels.hinit\\.dev/network}"); label != "none" {
		t.Error("the label of the network is", label)
	}
	a.mustRun("delete", "configmap", "agents-sandboxes")
	a.awaitNoPod("hermes-0000000e")
}
