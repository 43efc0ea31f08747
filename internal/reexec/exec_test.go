package reexec_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/reexec"
	"hinit/internal/testkit"
)

// roleVar makes the test binary the process that is re-executed.
const roleVar = "HINIT_TEST_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(roleVar) == "" {
		testkit.IsolateProcess()
		os.Exit(m.Run())
	}
	if err := runProgramInTurn(); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

// programState is the state for the next program.
type programState struct {
	Generation int
	Pipe       int
}

// runProgramInTurn is one of the programs that the process executes in turn. Each writes into a pipe from the first, sends itself
// signals while they have no handler, and executes the next. The third reads the pipe.
func runProgramInTurn() error {
	usr1, term := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(usr1, syscall.SIGUSR1)
	signal.Notify(term, syscall.SIGTERM)
	var s programState
	handed, err := reexec.TakeState()
	switch {
	case errors.Is(err, reexec.ErrNoState):
		var p [2]int
		if err := syscall.Pipe2(p[:], syscall.O_CLOEXEC); err != nil {
			return err
		}
		s.Pipe = p[0]<<16 | p[1]
	case err != nil:
		return err
	default:
		if err := json.Unmarshal(handed.State, &s); err != nil {
			return err
		}
		<-usr1 // a lost signal blocks this until the test's deadline
		fmt.Println("late:", handed.Signals)
	}
	r, w := s.Pipe>>16, s.Pipe&0xffff
	fmt.Println("image", s.Generation, os.Getpid(), os.Getenv(reexec.StateVariable) == "")
	if _, err := syscall.Write(w, []byte(strconv.Itoa(s.Generation))); err != nil {
		return err
	}
	if s.Generation == 2 {
		_ = syscall.Close(w)
		text, err := io.ReadAll(os.NewFile(uintptr(r), "pipe"))
		fmt.Println("pipe:", string(text))
		return err
	}
	s.Generation++
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	p := reexec.Program{
		Path: "/nowhere", Argv: os.Args, Env: os.Environ(), OpenDescriptors: []int{r, w}, State: data, Signals: []syscall.Signal{syscall.SIGTERM, syscall.SIGUSR1},
		TakeUnhandledSignals: func() []syscall.Signal { return []syscall.Signal{syscall.SIGHUP} },
	}
	fmt.Println("refused:", p.Execute())
	_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
	fmt.Println("afterwards:", <-term)
	p.Path = "/proc/self/exe"
	p.TakeUnhandledSignals = func() []syscall.Signal {
		signal.Stop(usr1) // the signal stays pending from here on, because every thread blocks it
		_ = syscall.Kill(os.Getpid(), syscall.SIGUSR1)
		_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
		return []syscall.Signal{syscall.SIGHUP}
	}
	return p.Execute()
}

func TestProcessBecomesAnotherImage(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVar+"=1")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := startWithBlockedSignals(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	pid := cmd.ProcessState.Pid()
	want := ""
	for g := range 3 {
		if g > 0 {
			want += "late: [hangup]\n"
		}
		want += fmt.Sprintf("image %d %d true\n", g, pid)
		if g < 2 {
			want += "refused: cannot execute the program: no such file or directory\nafterwards: terminated\n"
		}
	}
	want += "pipe: 012\n"
	if out.String() != want {
		t.Errorf("got:\n%swant:\n%s", out.String(), want)
	}
}

func startWithBlockedSignals(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var block, old unix.Sigset_t
	block.Val[0] = 1 << (uint(unix.SIGUSR1) - 1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &block, &old); err != nil {
		return err
	}
	return errors.Join(cmd.Start(), unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil))
}

func TestForeignMemoryIsNotTaken(t *testing.T) {
	for _, value := range []string{"", "x", "1", "99999", "-1"} {
		t.Setenv(reexec.StateVariable, value)
		if _, err := reexec.TakeState(); !errors.Is(err, reexec.ErrNoState) {
			t.Errorf("%q was taken: %v", value, err)
		}
		if _, there := os.LookupEnv(reexec.StateVariable); there {
			t.Errorf("children would see %s", reexec.StateVariable)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	t.Setenv(reexec.StateVariable, strconv.Itoa(int(r.Fd())))
	if _, err := reexec.TakeState(); !errors.Is(err, reexec.ErrNoState) || strings.Contains(fmt.Sprint(err), "bad") {
		t.Errorf("a pipe was taken: %v", err)
	}
}

// Descriptors that hinit has inherited, for example from the container engine, must be closed on exec, so that no service can
// read them.
func TestNoServiceGetsAFileThatHinitHasInherited(t *testing.T) {
	fd, err := unix.Open("/dev/null", unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := reexec.TakeState(); !errors.Is(err, reexec.ErrNoState) {
		t.Error(err)
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %#x, %v", flags, err)
	}
}
