package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// mountDeadFUSE mounts a FUSE file system without a server on a directory, so that each access hangs.
// detach unmounts it on this machine, but not in a container.
func mountDeadFUSE(t *testing.T, dir string) (detach func()) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Mount("dead", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd))
	}
	if err != nil {
		// Other users than root usually can't mount FUSE, so skip even in CI.
		t.Skip("this machine allows no FUSE mount by hand: ", err)
	}
	detach = func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }
	t.Cleanup(func() {
		unix.Close(fd) // Closing the descriptor ends the hanging calls with an error.
		detach()
	})
	return detach
}

// TestDeadDirectories checks that gateways start without delay although directories of the volume
// hang, as with a dead NFS server.
func TestDeadDirectories(t *testing.T) {
	parallel(t)
	data := t.TempDir()
	for name, content := range map[string]string{
		"SOUL.md": "", "gateway_state.json": `{"desired_state":"running"}`,
		"profiles/coder/SOUL.md": "", "profiles/coder/gateway_state.json": `{"desired_state":"running"}`,
		"cron/file": "",
	} {
		path := filepath.Join(data, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var detach []func()
	for _, dir := range []string{"elsewhere", ".local", "workspace", "profiles/coder/workspace", "profiles/dead"} {
		detach = append(detach, mountDeadFUSE(t, filepath.Join(data, dir)))
	}
	begin := time.Now()
	c := start(t, setup{options: []string{"-v", data + ":/opt/data"}}, "sh", "-c", "echo the CMD; exec sleep 1000")
	for _, f := range detach {
		f()
	}
	c.awaitUp("gateway-default", "gateway-coder")
	if took := time.Since(begin); took > settle {
		t.Errorf("the gateways took %v", took)
	}
	c.awaitLines("the CMD\n", "/opt/data/workspace does not answer", "/opt/data/profiles/dead does not answer")
	c.awaitOwned("hermes", "/opt/data/cron")
	c.mustExec("hinit", "restart", "coder")
	c.awaitHealthy()
	took := c.stop()
	t.Logf("docker stop took %v", took.Round(10*time.Millisecond))
	if took > stopTime {
		t.Errorf("docker stop took %v", took)
	}
}

// TestADataDirectoryThatNeverAnswersHoldsUpNoCommand checks that the CMD starts without delay
// although the data directory, which is in PATH, hangs.
func TestADataDirectoryThatNeverAnswersHoldsUpNoCommand(t *testing.T) {
	parallel(t)
	data := t.TempDir()
	detach := mountDeadFUSE(t, filepath.Join(data, "dead"))
	options := []string{"-v", data + ":/host", "-e", "HERMES_HOME=/host/dead", "-e", "PATH=/host/dead/.local/bin:/opt/hermes/bin:/usr/local/bin:/usr/bin:/bin"}
	c := start(t, setup{options: options}, "sh", "-c", "echo the CMD; exec sleep 1000")
	detach()
	eventually(t, settle, func() error {
		if r := c.exec("/usr/local/bin/hinit", "status"); !strings.Contains(r.out, "the volume has not answered yet") {
			return errors.New(r.String())
		}
		return nil
	})
	c.awaitLines("the CMD\n", "nothing but the CMD runs until then")
	// docker stop must work although a hanging call runs on the main thread.
	stat := "/proc/" + c.inspect("{{.State.Pid}}") + "/stat"
	eventually(t, settle, func() error {
		got, err := os.ReadFile(stat)
		if err == nil && !strings.Contains(string(got), ") S ") {
			return fmt.Errorf("the main thread of PID 1 does not wait for signals: %s", got)
		}
		return err
	})
	if took := c.stop(); took > stopTime {
		t.Errorf("docker stop took %v", took)
	}
}
