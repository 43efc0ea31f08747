package sandbox_test

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
)

// TestRootInsideIsNoRootOutside tries attacks by which the agent's user and root inside a sandbox
// together could become root of the host.
func TestRootInsideIsNoRootOutside(t *testing.T) {
	for name, env := range map[string][]string{"caller": nil, "private": {"HINIT_SANDBOX_ROOT=private"}} {
		t.Run(name, func(t *testing.T) {
			testkit.Parallel(t)
			private := name == "private"
			p, s := newService(t, env...)
			work, read := filepath.Join(p.home(), "work"), filepath.Join(p.home(), "read")
			for _, dir := range []string{work, read} {
				if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "given"), []byte("given"), 0o644), os.Chown(dir, agentUID, agentUID)); err != nil {
					t.Fatal(err)
				}
			}
			box := "hermes-" + p.profile
			flags := append([]string{"run", "-d", "--init", "--name", box, "--cap-drop", "ALL", "--cap-add", "DAC_OVERRIDE", "--cap-add", "CHOWN", "--cap-add", "FOWNER", "--cap-add", "SETUID", "--cap-add", "SETGID", "-u", "0:0"}, p.labels("default")...)
			flags = append(flags, "-v", work+":/workspace", "-v", read+":/root/.hermes/skills:ro", "--tmpfs", "/tmp:rw,exec,nosuid,size=64m", "--network=none", image(), "sleep", "infinity")
			if r := p.call(flags...); r.code != 0 {
				t.Fatal(r)
			}
			in := func(script string) result { return p.call("exec", box, "bash", "-c", script) }
			id := strings.TrimSpace(in("id -u; id -g; id -G").out)
			if want := "12345\n12345\n12345"; !private && id != want {
				t.Errorf("inside it is %q", id)
			} else if private && !strings.HasPrefix(id, "0\n0") {
				t.Errorf("inside it is %q, and not root", id)
			}
			if caps := in("grep -E 'Cap(Eff|Prm|Bnd|Amb)|NoNewPrivs' /proc/self/status").out; !strings.Contains(caps, "NoNewPrivs:\t1") || !private && strings.Count(caps, "0000000000000000") < 4 {
				t.Errorf("inside it has %s", caps)
			}
			if r := in("cat /root/.hermes/skills/given"); r.out != "given" {
				t.Errorf("what is mounted to be read: %v", r)
			}

			// These files in both mounts would give rights outside.
			in(`for d in /workspace /root/.hermes/skills; do
				cp /bin/bash $d/suid; chown 0:0 $d/suid; chmod 6755 $d/suid
				cp /bin/bash $d/caps; setfattr -n security.capability -v 0sAQAAAv////8AAAAA/////wAAAAA= $d/caps
				mknod $d/disk b 8 0; mknod $d/null c 1 3; ln /etc/passwd $d/link; chown 0:105 $d; done; true`)
			for _, dir := range []string{work, read} {
				err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
					var st unix.Stat_t
					if err := errors.Join(err, unix.Lstat(path, &st)); err != nil {
						return err
					}
					foreign := st.Uid != agentUID && (st.Uid != 0 || info.Name() != "given") || st.Gid != agentUID && info.Name() != "given"
					if foreign || info.Mode()&os.ModeDevice != 0 {
						t.Errorf("the agent finds %v of %d:%d at %s", info.Mode(), st.Uid, st.Gid, path)
					}
					if n, err := unix.Lgetxattr(path, "security.capability", nil); err == nil && n > 0 {
						t.Errorf("the agent finds capabilities at %s", path)
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}

			// Each mount has a socket of the agent, which passes a descriptor of its root directory.
			for dir, target := range map[string]string{work: "/workspace", read: "/root/.hermes/skills"} {
				l, err := net.Listen("unix", filepath.Join(dir, "sock"))
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				if err := os.Chmod(filepath.Join(dir, "sock"), 0o777); err != nil {
					t.Fatal(err)
				}
				p.call("stop", "-t", "0", box) // The engine copies files when the container starts.
				if r := p.call("start", box); r.code != 0 {
					t.Fatalf("the container of the real agent can't be started again: %v", r)
				}
				if r := in("[ ! -S " + target + "/sock ] || echo there"); private && r.out != "" {
					t.Errorf("a socket of the agent's is in %s: %v", target, r)
				}
				if r := in("[ -e " + target + "/given ] || echo missing"); target != "/workspace" && r.out != "" {
					t.Errorf("after another start: %v", r)
				}
			}
			// Process numbers and abstract sockets may also lead to the other side.
			l, err := net.Listen("unix", "@"+p.profile)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			sleeper := startAs(t, agentUID, "sleep", "1000")
			if r := in("cat /proc/net/unix; ls /proc; kill -9 -1"); strings.Contains(r.out, p.profile) {
				t.Errorf("it sees the abstract sockets of this machine: %v", r)
			}
			if err := sleeper.Signal(unix.Signal(0)); err != nil {
				t.Errorf("a process of the agent's was killed from inside: %v", err)
			}
			for _, flags := range [][]string{{"--pid=host"}, {"--ipc=host"}, {"--network=host"}, {"--userns=host"}, {"-v", "/proc:/p"}, {"--group-add=105"}} {
				if r := p.call(append(append([]string{"run", "-d"}, flags...), image(), "true")...); r.code == 0 {
					t.Errorf("docker run %v: %v", flags, r)
				}
			}
			p.call("start", box)
			if r := in("apt-get-like() { echo 'Permission denied, are you root?' >&2; return 100; }; apt-get-like"); !private && strings.Count(r.err, "HINIT_SANDBOX_ROOT=private") != 1 {
				t.Errorf("nothing says how to have root: %v", r)
			} else if r := in("echo 'Permission denied' >&2; exit 1"); strings.Contains(r.err, "HINIT_SANDBOX") {
				t.Errorf("it is said twice: %v", r)
			}
			if r := p.sandbox("show", box); !strings.Contains(r.out, map[bool]string{true: "volumes of the sandbox's own", false: "commands run as their caller"}[private]) {
				t.Errorf("show: %v", r)
			}

			if !private {
				r := runAs(p.env, 0, filepath.Join(built, "hinit-sandbox"), "exec", "--in", box, "id -u")
				other := runAs(p.env, 0, filepath.Join(built, "hinit-sandbox"), "exec", "--task", "root's", "id -u; id -g")
				if r.out != "12345\n" || other.out != "12345\n12345\n" {
					t.Errorf("root who asks is in the sandbox %v, and in one of its own %v", r, other)
				}
				return
			}
			// Root's files persist for the next container of the same directory.
			in("echo kept > /workspace/kept; mkdir -p /usr/lib/apt && echo installed > /usr/lib/apt/x")
			p.call("stop", "-t", "0", box)
			p.call("start", box)
			if r := in("cat /workspace/kept /usr/lib/apt/x"); r.out != "kept\ninstalled\n" {
				t.Errorf("after a stop: %v", r)
			}
			p.call("rm", "-f", box)
			if r := p.call(flags...); r.code != 0 {
				t.Fatal(r)
			}
			if r := in("cat /workspace/kept"); r.out != "kept\n" {
				t.Errorf("in the next container: %v", r)
			}
			if r := p.sandbox("ls", "--volumes"); !strings.Contains(r.out, work) {
				t.Errorf("the volumes: %v", r)
			}
			p.call("rm", "-f", box)
			if err := os.RemoveAll(work); err != nil {
				t.Fatal(err)
			}
			s.kill()
			s.start()
			p.call("version") // The call fails while the service has a caller.
			testkit.Until(t, "the volume is gone with its directory", func() bool { return !strings.Contains(docker("volume", "ls", "-q").out, p.profile) })
		})
	}
}

// startAs starts a program as a user, and kills it at the end of the test.
func startAs(t *testing.T, uid int, name string, args ...string) *os.Process {
	t.Helper()
	cmd := exec.Command(name, args...)
	setUser(cmd, uid)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process
}
