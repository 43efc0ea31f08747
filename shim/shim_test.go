package shim

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
)

const whoamiScript = `echo "$(id -u):$(id -g) $(id -G) $HOME"`

const (
	agentIdentity = "10000:10001 10001 44 109 /opt/data\n"
	rootIdentity  = "0:0 0 /root\n"
)

func TestRootIsDropped(t *testing.T) {
	testkit.NeedRoot(t)
	runCommand(t, newImage(t, whoamiScript).command()).want(t, 0, agentIdentity, "")
}

func TestNoWayBackToRoot(t *testing.T) {
	testkit.NeedRoot(t)
	r := runCommand(t, newImage(t, `exec grep -E '^(Uid|Gid|Groups|CapInh|CapPrm|CapEff|CapAmb|SigBlk):' /proc/self/status`).command())
	none := "0000000000000000\n"
	r.want(t, 0, "Uid:\t10000\t10000\t10000\t10000\nGid:\t10001\t10001\t10001\t10001\nGroups:\t44 109 10001 \n"+
		"SigBlk:\t"+none+"CapInh:\t"+none+"CapPrm:\t"+none+"CapEff:\t"+none+"CapAmb:\t"+none, "")
}

func TestCapabilitiesThatRootInherited(t *testing.T) {
	testkit.NeedRoot(t)
	cmd := newImage(t, `exec grep -E '^(CapPrm|CapEff|CapAmb):' /proc/self/status`).command()
	cmd.SysProcAttr = &syscall.SysProcAttr{AmbientCaps: []uintptr{unix.CAP_NET_BIND_SERVICE, unix.CAP_DAC_OVERRIDE}}
	none := "0000000000000000\n"
	runCommand(t, cmd).want(t, 0, "CapPrm:\t"+none+"CapEff:\t"+none+"CapAmb:\t"+none, "")
}

// A command of docker exec must get a higher oom_score_adj than PID 1. If it fills the memory, the kernel must kill it and not
// the CMD, whose end would end the container. A process that hinit has started keeps its own score.
func TestTheKernelTakesAChatOfDockerExecBeforeTheCMD(t *testing.T) {
	testkit.NeedRoot(t)
	script := "cat /proc/self/oom_score_adj"
	one, err := os.ReadFile("/proc/1/oom_score_adj")
	must(t, err)
	score, err := strconv.Atoi(strings.TrimSpace(string(one)))
	must(t, err)
	with := func(own int) *exec.Cmd {
		cmd := newImage(t, script).command()
		self, err := os.Executable()
		must(t, err)
		cmd.Args = []string{"sh", "-c", fmt.Sprintf("echo %d >/proc/self/oom_score_adj; exec %s", own, self)}
		cmd.Path = "/bin/sh"
		return cmd
	}
	runCommand(t, with(score)).want(t, 0, fmt.Sprintln(min(score+800, 1000)), "")
	hinits := 700
	if hinits == score {
		hinits = 600
	}
	runCommand(t, with(hinits)).want(t, 0, fmt.Sprintln(hinits), "")
}

func TestOptOut(t *testing.T) {
	testkit.NeedRoot(t)
	i := newImage(t, whoamiScript)
	for want, values := range map[string][]string{
		rootIdentity:  {"1", "true", "TRUE", "True", "tRuE", "yes", "YES", "Yes"},
		agentIdentity: {"", "0", "2", "11", "false", "no", "NO", "on", "y", "t", "garbage", " 1", "1 ", "true\n", "yes please", "truе"},
	} {
		for _, value := range values {
			t.Run(fmt.Sprintf("%q", value), func(t *testing.T) {
				cmd := i.command()
				cmd.Env = append(cmd.Env, "HERMES_DOCKER_EXEC_AS_ROOT="+value)
				runCommand(t, cmd).want(t, 0, want, "")
			})
		}
	}
}

func TestNotRootIsLeftAlone(t *testing.T) {
	testkit.NeedRoot(t) // without root this is an error, because the test becomes another user
	for _, uid := range []uint32{agentUID, 12345} {
		i := newImage(t, whoamiScript)
		runCommand(t, asUser(i.command(), uid)).want(t, 0, fmt.Sprintf("%d:%d %d /root\n", uid, uid, uid), "")

		i.target = "/usr/bin/env" // env itself, because a shell might change the order of the variables
		cmd := asUser(i.command(), uid)
		cmd.Env = append(cmd.Env, "HERMES_REAL_HOME=/elsewhere", "HERMES_DOCKER_EXEC_AS_ROOT=0", "EMPTY=", "TWO=a\nb")
		runCommand(t, cmd).want(t, 0, strings.Join(cmd.Env[1:], "\n")+"\n", "")
	}
}

func TestEnvironmentAfterTheDrop(t *testing.T) {
	testkit.NeedRoot(t)
	i := newImage(t, "")
	i.target = "/usr/bin/env"
	for real, home := range map[string]string{
		"": "/opt/data", "/opt/data/home": "/opt/data/home", "relative": "/opt/data", "~": "/opt/data",
	} {
		cmd := i.command()
		cmd.Env = append(cmd.Env, "USER=root", "LOGNAME=root", "HERMES_REAL_HOME="+real, "HERMES_HOME=/x", "EMPTY=", "TWO=a\nb")
		path, rest := cmd.Env[1], cmd.Env[3:] // cmd.Env[2] is HOME
		want := slices.Concat(rest, []string{path, "HOME=" + home})
		runCommand(t, cmd).want(t, 0, strings.Join(want, "\n")+"\n", "")
	}
	t.Run("no HOME before", func(t *testing.T) {
		cmd := i.command()
		cmd.Env = cmd.Env[:2]
		runCommand(t, cmd).want(t, 0, cmd.Env[1]+"\nHOME=/opt/data\n", "")
	})
}

func TestArgumentsAreExact(t *testing.T) {
	testkit.NeedRoot(t)
	i := newImage(t, `printf '%s\0' "$0" "$@"`)
	for _, args := range [][]string{
		{"config", "set", "a b", "", "new\nline", "--", "-x", "$HOME", "*", "\xff\xfe", "ü", ""},
		{"--version"},
		{strings.Repeat("long ", 20_000)},
	} {
		r := runCommand(t, i.command(args...))
		r.want(t, 0, i.target+"\x00"+strings.Join(args, "\x00")+"\x00", "")
	}
	runCommand(t, i.command()).want(t, 0, i.target+"\x00", "")
	t.Run("no argv at all", func(t *testing.T) {
		cmd := i.command()
		cmd.Args = []string{}
		if r := runCommand(t, cmd); r.code != 0 || !strings.HasPrefix(r.stdout, i.target+"\x00") {
			t.Errorf("exit code %d, stdout %q, stderr %q", r.code, r.stdout, r.stderr)
		}
	})
}

func TestSameProcess(t *testing.T) {
	testkit.NeedRoot(t)
	i := newImage(t, `echo $$; pwd; umask; cat; echo err >&2; exit 42`)
	cmd := i.command()
	cmd.Dir = i.dir + "/bin"
	cmd.Stdin = strings.NewReader("from stdin\n")
	old := unix.Umask(0o027)
	defer unix.Umask(old)
	r := runCommand(t, cmd)
	r.want(t, 42, fmt.Sprintf("%d\n%s\n0027\nfrom stdin\n", cmd.Process.Pid, cmd.Dir), "err\n")
}

func TestDeathBySignal(t *testing.T) {
	testkit.NeedRoot(t)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL, syscall.SIGINT, syscall.SIGPIPE, syscall.SIGQUIT} {
		r := runCommand(t, newImage(t, fmt.Sprintf("ulimit -c 0; kill -%d $$", sig)).command())
		if !r.status.Signaled() || r.status.Signal() != sig {
			t.Errorf("status %#x, want death by %v", r.status, sig)
		}
	}
}

func TestSignalsAtTheirDefault(t *testing.T) {
	testkit.NeedRoot(t)
	i := newImage(t, "")
	i.target = "/usr/bin/grep"
	r := runCommand(t, i.command("-E", "^Sig(Ign|Blk)", "/proc/self/status"))
	// Two signals of the C library, which Go can't change, must stay as the caller has them. A process from glibc's
	// posix_spawn, as in make, ignores them. The same holds for SIGHUP, which nohup ignores.
	status, err := os.ReadFile("/proc/self/status")
	must(t, err)
	_, rest, _ := strings.Cut(string(status), "SigIgn:\t")
	mine, err := strconv.ParseUint(rest[:16], 16, 64)
	must(t, err)
	r.want(t, 0, fmt.Sprintf("SigBlk:\t%016x\nSigIgn:\t%016x\n", 0, mine&(1<<(unix.SIGHUP-1)|1<<31|1<<32)), "")
}

func TestOpenFilesLimitIsTheCallers(t *testing.T) {
	testkit.NeedRoot(t)
	for _, user := range []string{"root", "agent"} {
		i := newImage(t, `ulimit -Sn; ulimit -Hn`)
		shim := i.command()
		// The shell sets the limits with which the shim starts.
		cmd := exec.Command("/bin/sh", "-c", fmt.Sprintf(`ulimit -Sn 777; ulimit -Hn 2000; exec "%s" x`, testBinary(t)))
		cmd.Env = shim.Env
		if user == "root" {
			cmd.Env = append(cmd.Env, "HERMES_DOCKER_EXEC_AS_ROOT=1")
		}
		runCommand(t, cmd).want(t, 0, "777\n2000\n", "")
	}
}

func testBinary(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	must(t, err)
	return path
}

func TestDescriptors(t *testing.T) {
	testkit.NeedRoot(t)
	secret, err := os.Open("/etc/passwd")
	must(t, err)
	defer secret.Close()
	i := newImage(t, `for n in 0 1 2 3 4 5; do if [ -e /proc/$$/fd/$n ]; then printf "$n "; fi; done`)
	for _, c := range []struct{ env, want string }{{"", "0 1 2 "}, {"HERMES_DOCKER_EXEC_AS_ROOT=1", "0 1 2 3 4 "}} {
		cmd := i.command()
		cmd.ExtraFiles = []*os.File{secret, secret}
		cmd.Env = append(cmd.Env, c.env)
		runCommand(t, cmd).want(t, 0, c.want, "")
	}
}

func TestTerminalIsKept(t *testing.T) {
	testkit.NeedRoot(t)
	master, slave, err := testkit.OpenTerminal(33, 101)
	must(t, err)
	defer master.Close()
	defer slave.Close()

	// /dev/tty opens only for a process with a controlling terminal.
	cmd := newImage(t, `[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && : </dev/tty && exec stty size`).command()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	must(t, cmd.Run())
	buf := make([]byte, 100)
	got, err := master.Read(buf)
	if err != nil || string(buf[:got]) != "33 101\r\n" {
		t.Errorf("the terminal shows %q, %v", buf[:got], err)
	}
}

// A command that root runs must get the ids of the container's agent, even if PUID could not be written to a read-only /etc. With
// the ids of the image, its files would not belong to the gateways.
func TestACommandHasTheIdsOfTheContainerWhereEtcIsReadOnly(t *testing.T) {
	testkit.NeedRoot(t)
	i := newImage(t, "id -u; id -g; id -G")
	must(t, os.MkdirAll(i.dir+"/run/hinit", 0o755))
	told := i.dir + "/run/hinit/agent"
	for text, want := range map[string]string{
		"hermes\n1234\n1235\n1235 44\n": "1234\n1235\n1235 44\n",
		"other\n1234\n1235\n1235\n":     "10000\n10001\n10001 44 109\n",
		"hermes\n1234\n":                "10000\n10001\n10001 44 109\n",
		"hermes\nx\n-1\n\n":             "10000\n10001\n10001 44 109\n",
	} {
		write(t, told, text, 0o644)
		runCommand(t, i.command()).want(t, 0, want, "")
	}
	write(t, told, "hermes\n0\n0\n0\n", 0o644)
	if r := runCommand(t, i.command()); r.code != 126 {
		t.Errorf("it runs as root: %+v", r)
	}
	write(t, told, "hermes\n1234\n1235\n1235 44\n", 0o644)
	must(t, os.Chown(told, agentUID, agentUID))
	runCommand(t, i.command()).want(t, 0, "10000\n10001\n10001 44 109\n", "")

	must(t, os.Remove(told)) // without this file, the shim reads the ids from the variables of the container
	asks := func(vars ...string) *exec.Cmd {
		cmd := i.command()
		cmd.Env = append(cmd.Env, vars...)
		return cmd
	}
	runCommand(t, asks("PUID=1234", "HERMES_UID=1233", "PGID=1235")).want(t, 0, "1233\n1235\n1235 44 109\n", "")
	runCommand(t, asks("PUID=0", "PGID=many")).want(t, 0, "10000\n10001\n10001 44 109\n", "")
}

// The shim must open files with plain system calls. Package os sets up epoll(7) for its first file, which takes a fifth of the
// shim's processor time. A list of descriptors is read only on old kernels.
func TestTheShimSetsUpNoPoller(t *testing.T) {
	files, err := filepath.Glob("*.go")
	must(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(t, err)
		for _, call := range []string{"os.ReadFile(", "os.WriteFile(", "os.Open(", "os.OpenFile("} {
			if !strings.HasSuffix(file, "_test.go") && strings.Contains(string(text), call) {
				t.Errorf("%s calls %s...)", file, call)
			}
		}
	}
}
