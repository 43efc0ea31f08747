package sandbox_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"hinit/internal/testkit"
)

// TestTheRuntimeEntersNoDirectoryOfTheAgent checks that only the gate program enters the working
// directory. The engine's runtime could follow a link to its own descriptor (CVE-2024-21626).
func TestTheRuntimeEntersNoDirectoryOfTheAgent(t *testing.T) {
	for name, env := range map[string][]string{"caller": nil, "private": {"HINIT_SANDBOX_ROOT=private"}} {
		t.Run(name, func(t *testing.T) {
			testkit.Parallel(t)
			p, _ := newService(t, append(env, "HINIT_SANDBOX_IMAGES="+image()+"*")...)
			work, roots := filepath.Join(p.home(), "work"), filepath.Join(p.home(), "roots")
			err := errors.Join(os.Mkdir(work, 0o755), os.Mkdir(roots, 0o755), os.Mkdir(work+"/closed", 0o700), os.WriteFile(work+"/file", nil, 0o644),
				os.Symlink("/proc/self/fd/7", work+"/leak"), os.Symlink("/proc/self/root", work+"/self"), os.Chown(work, agentUID, agentUID))
			if err != nil {
				t.Fatal(err)
			}
			withDir := image() + "-dir"
			build := exec.Command("docker", "build", "-q", "--network=none", "-t", withDir, "-")
			build.Env, build.Stdin = append(os.Environ(), "DOCKER_BUILDKIT=0"), strings.NewReader("FROM "+image()+"\nWORKDIR /of/the/image\n")
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatal(err, string(out))
			}
			t.Cleanup(func() { docker("rmi", "-f", withDir) })
			for _, try := range []struct{ flags, image, pwd, fails string }{
				{"", withDir, "/of/the/image", ""},
				{"-w /of/the/image", image(), "/of/the/image", ""},
				{"", image(), "/", ""},
				{"-w /tmp/new/one", image(), "/tmp/new/one", ""},
				{"-w /workspace/new", image(), "/workspace/new", ""},
				{"--init -w /workspace/self/tmp", image(), "", "too many levels of symbolic links"},
				{"-w /workspace/leak", image(), "", "too many levels of symbolic links"},
				{"-w /workspace/file", image(), "", "not a directory"},
				{"-w /workspace/closed", image(), "", "permission denied"},
				{"-w /roots/made", image(), "", "permission denied"},
				{"-w relative", image(), "", "an absolute path"},
			} {
				flags := append([]string{"run", "-d", "--network=none", "--tmpfs", "/tmp"}, p.labels("default")...)
				if name == "caller" { // In the other mode, nothing is shared.
					flags = append(flags, "-v", work+":/workspace", "-v", roots+":/roots")
				} else if strings.Contains(try.flags, "/workspace") || strings.Contains(try.flags, "/roots") {
					continue
				}
				r := p.call(append(append(append(flags, strings.Fields(try.flags)...), try.image), "sleep", "infinity")...)
				if try.fails != "" {
					if r.code != 125 || !strings.Contains(r.err, try.fails) {
						t.Errorf("%s: %v", try.flags, r)
					}
					if left := p.containers(); len(left) > 0 {
						t.Errorf("%s: there is a container %v", try.flags, left)
					}
					continue
				}
				id := strings.TrimSpace(r.out)
				for _, after := range []string{"run", "start"} {
					if r := p.call("exec", id, "pwd"); r.out != try.pwd+"\n" {
						t.Errorf("%s: the directory after docker %s: %v", try.flags, after, r)
					}
					if r := p.call("exec", "-w", "/bin", id, "pwd"); r.out != "/bin\n" {
						t.Errorf("%s: in a directory of docker exec -w: %v", try.flags, r)
					}
					if r := p.call("exec", id, "bash", "-c", "readlink /proc/1/cwd"); r.out != try.pwd+"\n" {
						t.Errorf("%s: the directory of the first process after docker %s: %v", try.flags, after, r)
					}
					if r := docker("inspect", "-f", "{{.Config.WorkingDir}}", id); r.out != "/\n" {
						t.Errorf("%s: the engine enters %v", try.flags, r)
					}
					if p.call("stop", "-t", "0", id); after == "run" {
						p.call("start", id)
					}
				}
				p.call("rm", "-f", id)
			}
			if made, err := os.ReadDir(roots); len(made) > 0 || err != nil {
				t.Errorf("in root's directory there is %v (%v)", made, err)
			}
		})
	}
}
