package volume

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/boot"
	"hinit/internal/testkit"
)

// The boot must not warn of a missing capability that the container has, such as CAP_CHOWN under Docker.
func TestNoCapabilityIsMissedThatIsThere(t *testing.T) {
	testkit.NeedRoot(t)
	runInChild(t, "mainthread", newVolumeDir(t), func(*exec.Cmd) {})
}

func TestWithoutRoot(t *testing.T) {
	testkit.NeedRoot(t)
	home := newVolumeDir(t)
	must(t, os.Chown(home, agentUID, agentGID))
	o, _ := options(t, home, nil)
	writeInstallDir(t, o)
	runInChild(t, "user", home, func(cmd *exec.Cmd) {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: agentUID, Gid: agentGID}}
	})
	wantOwner(t, home+"/config.yaml", fmt.Sprintf("%d:%d 0640", agentUID, agentGID))
}

func TestWithoutTheRightToChown(t *testing.T) {
	testkit.NeedRoot(t)
	home := newVolumeDir(t)
	must(t, os.Chmod(home, 0o777))
	writeFile(t, home+"/auth.json", "")
	writeFile(t, home+"/profiles/coder/.env", "")
	runWithCapabilities(t, "nochown", home, func(c int) bool { return c != unix.CAP_CHOWN })
	if uidOf(t, home+"/sessions") != agentUID {
		t.Error("directories are not made as the agent")
	}
	if _, err := os.Lstat(home + "/" + boot.RepairPendingFile); err == nil {
		t.Error("the mark of a repair is left")
	}
}

// The boot must work with only the capabilities that the documentation lists.
func TestFewCapabilities(t *testing.T) {
	testkit.NeedRoot(t)
	home := newVolumeDir(t)
	writeFile(t, home+"/workspace/private/f", "")
	must(t, os.Chmod(home+"/workspace/private", 0o700))
	chownAll(t, home+"/workspace/private", 1234)
	runWithCapabilities(t, "fewcaps", home, func(c int) bool {
		switch c {
		case unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_KILL:
			return true
		}
		return false
	})
	if uidOf(t, home+"/workspace/private/f") != agentUID {
		t.Error("a closed directory was not repaired")
	}
}

func TestNoCapabilities(t *testing.T) {
	testkit.NeedRoot(t)
	runWithCapabilities(t, "nocaps", newVolumeDir(t), func(int) bool { return false })
}

func runWithCapabilities(t *testing.T, name, home string, keep func(int) bool) {
	t.Helper()
	runInChild(t, name, home, func(cmd *exec.Cmd) {
		setpriv, err := exec.LookPath("setpriv")
		if err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
		set := "-all"
		for c := 0; c <= unix.CAP_LAST_CAP; c++ {
			if keep(c) {
				set += fmt.Sprintf(",+cap_%d", c)
			}
		}
		cmd.Path, cmd.Args = setpriv, []string{setpriv, "--bounding-set", set, "--inh-caps", "-all", "/proc/" + fmt.Sprint(os.Getpid()) + "/exe"}
	})
}
