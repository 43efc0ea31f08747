package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// sandboxImage builds the sandbox image with busybox and bash.
var sandboxImage = sync.OnceValues(func() (string, error) {
	context, err := makeContext()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(context, "sandbox-image")
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	kept := filepath.Join(cache, "hinit", "bash-static-"+runtime.GOARCH)
	if _, err := os.Stat(kept); err != nil {
		if r := command(exec.Command("../../docker/bash", runtime.GOARCH, kept)); r.code != 0 {
			return "", errors.New(r.String())
		}
	}
	text := "FROM scratch\nENV PATH=/bin\nCOPY bash busybox /bin/\nRUN [\"/bin/busybox\", \"--install\", \"-s\", \"/bin\"]\n" +
		"RUN mkdir -p /tmp /root /etc && chmod 1777 /tmp && echo 'root:x:0:0::/root:/bin/bash' > /etc/passwd\n"
	if err := errors.Join(
		os.MkdirAll(dir, 0o755), copyFile(kept, filepath.Join(dir, "bash"), 0o755), os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(text), 0o644),
		copyFile(filepath.Join(context, "dist", "linux-"+runtime.GOARCH, "busybox"), filepath.Join(dir, "busybox"), 0o755),
	); err != nil {
		return "", err
	}
	// The label makes the image unique to this run, because the test removes all its containers.
	return imageTag("sandbox"), build(dir, imageTag("sandbox"), "--label", runLabel)
})

// toolResult is the terminal tool's answer to one command.
type toolResult struct {
	Output    string `json:"output"`
	Code      int    `json:"exit_code"`
	Container string `json:"container"`
}

// session runs commands in one session of the agent's terminal tool, through docker exec.
func (c *container) session(profile string, commands ...string) (all []toolResult) {
	c.t.Helper()
	var in bytes.Buffer
	for _, text := range commands {
		line, _ := json.Marshal(map[string]any{"command": text, "timeout": 60})
		in.Write(append(line, '\n'))
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	args := []string{"exec", "-i", c.id, "hermes"}
	if profile != "default" {
		args = append(args, "-p", profile)
	}
	cmd := exec.CommandContext(ctx, "docker", append(args, "terminal")...)
	cmd.Stdin = &in
	r := command(cmd)
	for line := range strings.Lines(r.out) {
		var s toolResult
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			c.t.Fatalf("%v: %v", err, r)
		}
		all = append(all, s)
	}
	if len(all) != len(commands) {
		c.t.Fatalf("%d answers to %d commands: %v", len(all), len(commands), r)
	}
	return all
}

// TestAWeekOfTurns simulates a week of sessions in a minute, with killed agents, containers and
// services. Each command must run once, and no container may remain.
func TestAWeekOfTurns(t *testing.T) {
	parallel(t)
	image, err := sandboxImage()
	if err != nil {
		t.Fatal(err)
	}
	c := start(t, setup{options: []string{
		"-v", "/var/run/docker.sock:/var/run/docker.sock", "-e", "HINIT_SANDBOX=1", "-e", "HERMES_DOCKER_BINARY=/opt/hinit/docker", "-e", "TERMINAL_DOCKER_IMAGE=" + image,
		"-e", `TERMINAL_DOCKER_EXTRA_ARGS=["--network=none"]`, "-e", "TERMINAL_CONTAINER_DISK=0",
	}, files: profile("coder", "")}, "gateway", "run")
	ours := func() []string { return strings.Fields(docker("ps", "-aq", "--filter", "ancestor="+image).out) }
	t.Cleanup(func() {
		for _, id := range ours() {
			docker("rm", "-fv", id)
		}
	})
	c.awaitUp("sandbox")
	eventually(t, settle, func() error { return c.execAs([]string{"-u", "hermes"}, "/opt/hinit/docker", "version").failed() })
	if r := c.execAs([]string{"-u", "hermes"}, "sh", "-c", "test -w /var/run/docker.sock"); r.code == 0 {
		t.Error("the agent's user can write to the engine's socket")
	}
	var want []string
	for day := range 7 {
		for _, who := range []string{"default", "coder"} {
			id := fmt.Sprintf("%s-%d", who, day)
			got := c.session(who, "echo "+id+" >> /workspace/ledger; export DAY="+id+"; cd /tmp", "echo $DAY $(pwd)", "echo "+id+"-b >> /workspace/ledger; echo nginx is not running; exit 3")
			if got[0].Code != 0 || got[1].Output != id+" /tmp\n" || got[2].Code != 3 {
				t.Errorf("day %d of %s: %+v", day, who, got)
			}
			if who == "coder" {
				continue
			}
			want = append(want, id, id+"-b")
			switch box := got[0].Container; day {
			case 1: // Kill an agent in the middle of a command, with all its processes.
				ctx, kill := context.WithCancel(t.Context())
				cmd := exec.CommandContext(ctx, "docker", "exec", "-i", c.id, "sh", "-c", `echo '{"command":"echo killed >> /workspace/ledger; sleep 54321","timeout":600}' | exec hermes terminal`)
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				eventually(t, settle, func() error { return checkContains(docker("exec", box, "ps").out, "sleep 54321") })
				want = append(want, "killed")
				c.exec("sh", "-c", "for p in $(ps -o pid,args | grep -E '[h]ermes terminal|[o]pt/hinit/docker exec' | awk '{print $1}'); do kill -9 $p; done")
				kill()
				_ = cmd.Wait()
				eventually(t, settle, func() error {
					if out := docker("exec", box, "ps").out; strings.Contains(out, "54321") {
						return errors.New(out)
					}
					return nil
				})
			case 2:
				mustDocker(t, "rm", "-f", box)
			case 3:
				mustDocker(t, "stop", "--time", "0", box)
			case 4:
				mustDocker(t, "pause", box)
			case 5:
				c.exec("sh", "-c", "kill -9 $(pidof hinit-sandbox)")
			}
		}
	}
	last := c.session("default", "cat /workspace/ledger", "hostname")
	if got := strings.Fields(last[0].Output); strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("the ledger is\n%v, want\n%v", got, want)
	}
	if n := len(ours()); n != 2 {
		t.Errorf("there are %d containers for two profiles: %v", n, docker("ps", "-a", "--filter", "ancestor="+image))
	}
	if r := c.exec("hinit", "status", "sandbox"); r.code != 0 || !strings.Contains(r.out, "up") {
		t.Errorf("status: %v", r)
	}
	var listed []struct{ Image, State string }
	r := c.exec("hinit", "sandbox", "ls", "--json")
	if err := json.Unmarshal([]byte(r.out), &listed); err != nil {
		t.Errorf("ls: %v: %v", err, r)
	}
	listed = slices.DeleteFunc(listed, func(s struct{ Image, State string }) bool { return s.Image != image }) // other tests use the engine too
	if want := []struct{ Image, State string }{{image, "running"}, {image, "running"}}; !slices.Equal(listed, want) {
		t.Errorf("ls: %v", r)
	}
	mounts := mustDocker(t, "inspect", "--format", "{{range .Mounts}}{{.Type}} {{.Source}} {{.Destination}}\n{{end}}", last[1].Container)
	if volume := mustDocker(t, "inspect", "--format", `{{range .Mounts}}{{if eq .Destination "/opt/data"}}{{.Source}}{{end}}{{end}}`, c.id); !strings.Contains(mounts, "bind "+volume+"/sandboxes/docker/default/workspace /workspace") {
		t.Errorf("the workspace is not on the volume: %s", mounts)
	}
	for _, profile := range []string{"default", "coder"} {
		if r := c.exec("hinit", "sandbox", "rm", "--profile", profile); r.code != 0 {
			t.Errorf("rm: %v", r)
		}
	}
	if left := ours(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	begin := time.Now()
	c.stop()
	t.Logf("the container stopped in %v", time.Since(begin))
}

// failed returns an error if the command has failed.
func (r result) failed() error {
	if r.code != 0 {
		return errors.New(r.String())
	}
	return nil
}
