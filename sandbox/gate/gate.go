// Package gate keeps a container from running anything until the service outside has checked the container's mounts.
//
// An engine follows the path of a mount by name at every start. If a user renames a directory on that path between a check and
// the start, the mount shows another directory. So the mounts are checked from inside. The container's first process is
// [WaitAndExec], in a static program on a volume to which no process inside can write. [ServeCheck] runs in the same container.
// It prints the device and inode of each mount, and reads the decision of the service, the verdict. After the verdict "go", the
// first process becomes the command for which the container was started. Before that, no program of the image or of a mount runs,
// and no environment variable has an effect.
//
// As an init, the package owns one goroutine, which passes on signals.
package gate

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/proc"
	"hinit/sandbox/archive"
)

// DirPrefix is the prefix of the program's directory inside a container, and ProgramName the program's name in it. A random
// suffix follows the prefix. If the directory's name was known, a link in one mount could redirect another mount to it.
const (
	DirPrefix   = "/.hinit-"
	ProgramName = "gate"
)

// verdictSocket is the socket on which [WaitAndExec] listens, in the abstract namespace of the container. Only processes inside
// can connect to it.
const verdictSocket = "@hinit-gate"

// initProcessName is the process name that [WaitAndRunInit] takes after the verdict. [State] recognises the process by this
// name.
const initProcessName = "hinit-init"

// The words of the protocol between [ServeCheck] and the service. VerdictGo is the verdict that lets the command run,
// CommandUnpack announces an archive, and CommandAccessTimes asks for access times. ServeCheck answers with the state of the
// gate: StateOpened or StateWaiting.
const (
	VerdictGo          = "go\n"
	CommandUnpack      = "unpack\n"
	CommandAccessTimes = "times\n"
	StateOpened        = "open\n"
	StateWaiting       = "waits\n"
)

// WaitAndExec blocks until the sandbox service has sent the verdict [VerdictGo]. Then it executes the command argv in the
// directory dir in place of this process. It returns only on failure.
func WaitAndExec(dir string, argv []string) error {
	path, err := awaitCommand(dir, argv)
	if err != nil {
		return err
	}
	return fmt.Errorf("cannot run %s: %w", path, syscall.Exec(path, argv, os.Environ()))
}

// WaitAndRunInit waits for the verdict like [WaitAndExec], but then starts the command as a child and is its init. It passes
// signals on, reaps orphans, and returns the command's exit code.
func WaitAndRunInit(dir string, argv []string) (code int, err error) {
	path, err := awaitCommand(dir, argv)
	if err != nil {
		return 126, err
	}
	if err := os.WriteFile("/proc/self/comm", []byte(initProcessName), 0); err != nil {
		return 126, err
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2)
	child, err := syscall.ForkExec(path, argv, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		return 127, fmt.Errorf("cannot run %s: %w", path, err)
	}
	go func() {
		for s := range signals {
			if number, ok := s.(syscall.Signal); ok {
				_ = syscall.Kill(child, number) // Ignore the error: the call fails only if the child has just ended.
			}
		}
	}()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 1, fmt.Errorf("cannot wait for the command: %w", err)
		case pid != child:
		case status.Signaled():
			return 128 + int(status.Signal()), nil
		default:
			return status.ExitStatus(), nil
		}
	}
}

// awaitCommand waits for the verdict and enters the directory dir. Then it returns the path of the command's program.
func awaitCommand(dir string, argv []string) (path string, err error) {
	if len(argv) == 0 {
		return "", errors.New("cannot wait at the gate: there is no command")
	}
	if err = awaitGo(dir); err != nil {
		return "", fmt.Errorf("cannot wait at the gate: %w", err)
	}
	if path, err = proc.LookPath(argv[0], os.Environ()); err != nil {
		return argv[0], nil //nolint:nilerr // ignore the error: execve(2) then reports what is wrong with the path
	}
	return path, nil
}

// awaitGo accepts connections until a client has sent the verdict [VerdictGo] and this process has entered the directory dir. It
// answers with the same line, or with the error of the directory.
func awaitGo(dir string) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: verdictSocket, Net: "unix"})
	if err != nil {
		return err
	}
	defer l.Close()
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		if line, _ := bufio.NewReader(c).ReadString('\n'); line == VerdictGo { // Ignore the error: an incomplete line is no verdict.
			if err := EnterDir(dir, 0); err != nil {
				line = strings.ReplaceAll(err.Error(), "\n", " ") + "\n"
			}
			if _, err = io.WriteString(c, line); line == VerdictGo {
				return errors.Join(err, c.Close())
			}
		}
		_ = c.Close() // Wait for the next client.
	}
}

// State reports whether the first process still waits for the verdict ([StateWaiting]) or has passed the gate
// ([StateOpened]). It returns "" while the engine has not started the first process. State looks at the command line and the
// name of the process, which change after the verdict. Only a process inside could forge them, and none runs before the verdict.
func State() string {
	line, err := os.ReadFile("/proc/1/cmdline")
	comm, commErr := os.ReadFile("/proc/1/comm")
	return stateOf(strings.Split(string(line), "\x00"), strings.TrimSpace(string(comm)), errors.Join(err, commErr))
}

func stateOf(words []string, name string, err error) string {
	switch {
	// The process is still the engine's runtime, which has not executed our program yet.
	case err != nil, words[0] == "", strings.HasPrefix(name, "runc"), strings.HasPrefix(name, "crun"):
		return ""
	case name == initProcessName, len(words) < 2, !strings.HasSuffix(words[0], "/"+ProgramName), words[1] != "gate" && words[1] != "gate-init":
		return StateOpened
	}
	return StateWaiting
}

// stateTimeout limits how long ServeCheck waits for the first process.
const stateTimeout = 5 * time.Second

// ServeCheck runs in the container and talks to the service through in and out. It prints the state of the gate. While the first
// process waits, it also prints "DEVICE INODE" for each path, or "- -" if the path is missing, and then an empty line.
//
// Then ServeCheck reads commands, one a line, and answers each by printing the same line. After [CommandUnpack] an archive
// follows, which ServeCheck unpacks below the root directory. At [CommandAccessTimes] it prints the access time of each path, in
// nanoseconds since 1970. At [VerdictGo] it passes the verdict on and prints the answer of the first process: the same line, or
// why it can't enter its working directory.
func ServeCheck(paths []string, in io.Reader, out io.Writer) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot open the gate: %w", err)
		}
	}()
	state := State()
	for start := time.Now(); state == ""; state = State() {
		if time.Since(start) > stateTimeout {
			return errors.New("the engine has not started the first process")
		}
		<-time.After(time.Millisecond)
	}
	if _, err := io.WriteString(out, state); err != nil || state == StateOpened {
		return err
	}
	for _, path := range paths {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			fmt.Fprintln(out, "- -")
			continue
		}
		fmt.Fprintln(out, st.Dev, st.Ino)
	}
	fmt.Fprintln(out)
	line, lines := "", bufio.NewReader(in)
	for err == nil && line != VerdictGo {
		switch line, err = lines.ReadString('\n'); line {
		case CommandUnpack:
			// Replace files that stand in the way, which commands of the last run may have made.
			err = archive.Unpack(lines, "/", true)
		case CommandAccessTimes:
			for _, path := range paths {
				var st unix.Stat_t
				_ = unix.Stat(path, &st) // For a missing path, this prints 0, which the service does not accept.
				fmt.Fprintln(out, st.Atim.Nano())
			}
		case VerdictGo:
			line, err = sendGo()
		default:
			err = errors.New("it was not allowed")
		}
		if err == nil {
			_, err = io.WriteString(out, line)
		}
	}
	return err
}

// sendGo sends the verdict to the first process, and returns its answer.
func sendGo() (answer string, err error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: verdictSocket, Net: "unix"})
	if err != nil {
		return "", err
	}
	defer c.Close()
	if _, err = io.WriteString(c, VerdictGo); err == nil {
		answer, err = bufio.NewReader(c).ReadString('\n')
	}
	return answer, err
}
