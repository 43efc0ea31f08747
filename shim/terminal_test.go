package shim

import (
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
)

// typeTextEnv makes the test binary a hostile agent that types the variable's value into every terminal in reach.
const typeTextEnv = "SHIM_TEST_TYPE"

// typeIntoTerminals prints the terminals that accepted its input.
func typeIntoTerminals(text string) int {
	terminals := []int{0, 1, 2}
	if fd, err := unix.Open("/dev/tty", unix.O_RDWR, 0); err == nil {
		terminals = append(terminals, fd)
	}
	typed := 0
	for _, fd := range terminals {
		for i := range len(text) {
			key := text[i]
			if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCSTI, uintptr(unsafe.Pointer(&key))); errno != 0 {
				break
			}
			typed++
		}
	}
	_, still := unix.IoctlGetTermios(0, unix.TCGETS)
	fmt.Printf("agent %d, typed %d, a terminal %v\n", os.Getuid(), typed, still == nil)
	return 0
}

// newTypingImage makes an image whose agent program is the hostile agent.
func newTypingImage(t *testing.T) *image {
	t.Helper()
	i := newImage(t, "")
	self, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	write(t, i.dir+"/bin/typist", string(self), 0o755)
	write(t, i.target, "#!/bin/sh\n"+typeTextEnv+"='echo evil as $(id -u)\n' exec '"+i.dir+"/bin/typist'\n", 0o755)
	return i
}

// runOnTerminal runs a shell of root on a new terminal, and the shim from that shell. It returns the output of the terminal until
// the shell has read the line that is typed after the agent's end.
func runOnTerminal(t *testing.T, i *image) string {
	t.Helper()
	master, slave, err := testkit.OpenTerminal(24, 80)
	must(t, err)
	defer master.Close()
	shell := i.command()
	shell.Path, shell.Args = "/bin/sh", []string{"sh", "-c", `"$0"; echo ask; read -r line; echo "root's shell read: $line"`, "/proc/self/exe"}
	exe, err := os.Readlink("/proc/self/exe")
	must(t, err)
	shell.Args[3] = exe
	shell.Stdin, shell.Stdout, shell.Stderr = slave, slave, slave
	shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	must(t, shell.Start())
	must(t, slave.Close())
	var shown strings.Builder
	buf := make([]byte, 4096)
	answered := false
	for {
		n, err := master.Read(buf)
		shown.Write(buf[:n])
		if !answered && strings.Contains(shown.String(), "ask\r\n") {
			answered = true
			_, err = io.WriteString(master, "root's own line\n")
		}
		if err != nil {
			break
		}
	}
	must(t, shell.Wait())
	return shown.String()
}

func TestTheAgentCannotTypeIntoTheShellThatRootHasCalledItFrom(t *testing.T) {
	testkit.NeedRoot(t)
	shown := runOnTerminal(t, newTypingImage(t))
	for _, want := range []string{"agent 10000, typed 0, a terminal true", "root's shell read: root's own line"} {
		if !strings.Contains(shown, want) {
			t.Errorf("the terminal shows no %q, but:\n%s", want, shown)
		}
	}
}

func TestWhoIsAloneOnATerminalKeepsIt(t *testing.T) {
	testkit.NeedRoot(t)
	master, slave, err := testkit.OpenTerminal(24, 80)
	must(t, err)
	defer master.Close()
	defer slave.Close()
	cmd := newImage(t, `: </dev/tty && echo mine`).command() // the same terminal as after docker exec -it CONTAINER hermes
	cmd.Stdin = slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	runCommand(t, cmd).want(t, 0, "mine\n", "")
}
