package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAnAgentGetsNoMoreThanASandbox is the list of docs/explanation/sandbox-security.md on a cluster: what the agent may ask for, and what
// commands in a sandbox reach.
func TestAnAgentGetsNoMoreThanASandbox(t *testing.T) {
	a := withSandboxes(t)
	for _, attack := range []struct {
		name string
		more []string
		says string
	}{
		{"the host's files", []string{"-v", "/:/host"}, "is not allowed"},
		{"the files of the agents' image", []string{"-v", "/etc:/etc2"}, "is not allowed"},
		{"the token of the service", []string{"-v", "/run/secrets/hinit-sandbox:/token"}, "is not allowed"},
		{"a path that leads out", []string{"-v", "/opt/data/../../etc:/etc2"}, "is not allowed"},
		{"an engine's name of a path", []string{"-v", "/claims/agents-data:/x"}, "is not allowed"},
		{"a volume of the cluster", []string{"-v", "agents-data:/x"}, "is not allowed"},
		{"the mount of the program inside", []string{"--tmpfs", "/.hinit-x"}, "is not allowed"},
		{"privileges", []string{"--privileged"}, ""},
		{"a capability", []string{"--cap-add", "SYS_ADMIN"}, ""},
		{"the host's processes", []string{"--pid", "host"}, ""},
		{"the host's network", []string{"--network", "host"}, ""},
		{"another network", []string{"--network", "database"}, "is not allowed"},
		{"a device", []string{"--device", "/dev/kmsg"}, ""},
		{"no seccomp", []string{"--security-opt", "seccomp=unconfined"}, ""},
		{"a port of the node", []string{"-p", "80:80"}, "is not allowed"},
		{"another runtime", []string{"--runtime", "other"}, "is not allowed"},
		{"another owner", []string{"--label", "hinit-owner=0"}, "is not allowed"},
		{"another profile", []string{"--label", "hermes-profile=other"}, "is not allowed"},
		{"the name of an object that can't be", []string{"--name", "Hermes_x"}, "lower-case letters"},
	} {
		if r := a.run("hermes-0000000d", attack.more...); r.code == 0 || !strings.Contains(r.out, attack.says) {
			t.Errorf("%s: %v", attack.name, r)
		}
	}
	if r := a.docker("run", "-d", "alpine", "sleep", "infinity"); r.code == 0 || !strings.Contains(r.out, "the image \"alpine\" is not allowed") {
		t.Error(r)
	}
	if err := os.Symlink("/etc", filepath.Join(a.volume, "link")); err != nil {
		t.Fatal(err)
	}
	if r := a.run("hermes-0000000d", "-v", "/opt/data/link:/x"); r.code == 0 || !strings.Contains(r.out, "is not allowed") {
		t.Error("a link:", r)
	}
	if pods := a.must("get", "pods", "-l", "hinit.dev/sandbox", "-o", "name"); pods != "" {
		t.Error("something was made:", pods)
	}

	id := a.made(a.run("hermes-0000000d", "--user", "0:0"))
	for _, attack := range []struct{ name, line, want string }{
		{"root", "id -u", "10000\n"},
		{"capabilities", "grep CapEff /proc/self/status", "CapEff:\t0000000000000000\n"},
		{"new privileges", "grep NoNewPrivs /proc/self/status", "NoNewPrivs:\t1\n"},
		{"system calls", "grep Seccomp: /proc/self/status", "Seccomp:\t2\n"},
		{"a token", "find / -name token -path '*secrets*' 2>/dev/null | wc -l", "0\n"},
		{"the program inside", "for d in /.hinit-*; do echo x 2>/dev/null > $d/gate || echo no; rm -f $d/gate 2>/dev/null || echo no; done", "no\nno\n"},
		{"other pods' processes", "ls -d /proc/[0-9]* | wc -l | (read n; [ $n -lt 12 ] && echo few)", "few\n"},
		{"the agents' socket", "ls /run/sandboxes /run/hinit 2>/dev/null | wc -l", "0\n"},
		{"devices", "ls /dev | grep -c -e sd -e nvme -e kmsg -e mem", "0\n"},
	} {
		if r := a.sh(id, attack.line); !strings.HasPrefix(r.out, attack.want) {
			t.Errorf("%s: %v", attack.name, r)
		}
	}

	agent := func(line string) string {
		return a.try("exec", "agents-0", "-c", "agents", "--", "sh", "-c", line).out
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
		if r := a.try(append([]string{"auth", "can-i", as}, no...)...); !strings.HasPrefix(r.out, "no") && !strings.Contains(r.out, "\nno") {
			t.Errorf("the service may %v: %v", no, r)
		}
	}
	spec := a.must("get", "pod", object("hermes-0000000d"), "-o", "jsonpath={.metadata.labels.hinit\\.dev/network} {.spec.automountServiceAccountToken} {.metadata.ownerReferences[0].kind} {.spec.securityContext.seccompProfile.type}")
	if spec != "default false ConfigMap RuntimeDefault" {
		t.Error("the pod has", spec)
	}
	a.docker("rm", "-f", id)
	id = a.made(a.run("hermes-0000000e", "--network", "none"))
	if label := a.must("get", "pod", object("hermes-0000000e"), "-o", "jsonpath={.metadata.labels.hinit\\.dev/network}"); label != "none" {
		t.Error("the label of the network is", label)
	}
	a.must("delete", "configmap", "agents-sandboxes")
	a.gone("hermes-0000000e")
}
