package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"hinit/internal/testkit"
)

const testMainVar = "KANBAN_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(testMainVar) != "" {
		main()
	}
	os.Exit(m.Run())
}

// A command of the board runs the agent's program for root. The program must get neither root's terminal nor root's open files,
// because the agent may have changed it, and it could type into root's shell.
func TestTheAgentTypedIntoRootsShellThroughTheBoard(t *testing.T) {
	testkit.NeedRoot(t)
	if text, err := os.ReadFile("/proc/sys/dev/tty/legacy_tiocsti"); err == nil && strings.TrimSpace(string(text)) == "0" {
		t.Skip("the kernel allows no typing into terminals")
	}
	master, slave, err := testkit.OpenTerminal(24, 80)
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	dir := t.TempDir()
	agent, home := filepath.Join(dir, "hermes"), filepath.Join(dir, "home")
	script := "#!/bin/sh\n( : </dev/tty ) 2>/dev/null && echo it has the terminal\n( : <&7 ) 2>/dev/null && echo it has a file\necho user $(id -u), words $*\n"
	err = errors.Join(os.WriteFile(agent, []byte(script), 0o755), os.Mkdir(home, 0o755), os.Chown(home, 10000, 10000), os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755))
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	shell := exec.Command("/bin/sh", "-c", `"$0" swarm x 7</etc/shadow; echo over`, self)
	shell.Env = []string{testMainVar + "=1", "HERMES_BIN=" + agent, "HERMES_HOME=" + home, "HOME=" + home, "PATH=" + os.Getenv("PATH")}
	shell.Stdin, shell.Stdout, shell.Stderr = slave, slave, slave
	shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := errors.Join(shell.Start(), slave.Close()); err != nil {
		t.Fatal(err)
	}
	shown, _ := io.ReadAll(master)
	if err := shell.Wait(); err != nil || !strings.HasPrefix(string(shown), "user 10000, words kanban swarm x\r\nover") {
		t.Errorf("the terminal shows %q (%v)", shown, err)
	}
}
