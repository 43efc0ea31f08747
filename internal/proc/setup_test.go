package proc

import (
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// runShell runs a script with spec and returns its output and exit code.
func runShell(t *testing.T, spec Spec, script string) (out string, code int) {
	t.Helper()
	table := newTable(t)
	spec.ID, spec.Argv = 1, []string{"/bin/sh", "-c", script}
	if spec.Env == nil {
		spec.Env = []string{"PATH=/usr/bin:/bin"}
	}
	_, r := spawn(t, table, spec)
	all, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(all), awaitExit(t, table, 1).Code
}

func nice(n int) string {
	own, _ := unix.Getpriority(unix.PRIO_PROCESS, 0)
	return strconv.Itoa(max(-20, min(20-own+n, 19)))
}

func TestASetupIsInForceBeforeTheCommand(t *testing.T) {
	var own unix.CPUSet
	if err := unix.SchedGetaffinity(0, &own); err != nil {
		t.Fatal(err)
	}
	cpu := 0
	for !own.IsSet(cpu) {
		cpu++
	}
	list := strconv.Itoa(cpu)
	out, code := runShell(t, Spec{
		Setup:  Setup{Nice: 7, IOClass: IOIdle, CPUs: list, Umask: "027", NoNewPrivs: true},
		Limits: []Limit{{unix.RLIMIT_NOFILE, 100, 200}},
	}, "umask; cut -d' ' -f19 /proc/$$/stat; cat /proc/$$/status; ulimit -Sn; ulimit -Hn")
	lines := strings.Split(out, "\n")
	if code != 0 || lines[0] != "0027" || lines[1] != nice(7) {
		t.Errorf("code %d, umask and nice are %q", code, lines[:2])
	}
	for _, want := range []string{"NoNewPrivs:\t1\n", "Cpus_allowed_list:\t" + list + "\n", "\n100\n200\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

func TestTheClassOfTheDiskIsSet(t *testing.T) {
	table := newTable(t)
	pid, out := spawn(t, table, Spec{
		ID: 1, Argv: []string{"/bin/sh", "-c", "echo up; exec sleep 1000"}, Env: []string{"PATH=/usr/bin:/bin"},
		Setup: Setup{IOClass: IOBestEffort, IOLevel: 6},
	})
	readLine(t, out)
	class, _, errno := unix.RawSyscall(unix.SYS_IOPRIO_GET, 1, uintptr(pid), 0)
	if errno != 0 || class != IOBestEffort<<13|6 {
		t.Errorf("it is %d, error %v", class, errno)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	awaitExit(t, table, 1)
}

func TestVariablesComeFromFilesAtEachStart(t *testing.T) {
	dir := t.TempDir()
	file := dir + "/vars"
	if os.Geteuid() == 0 {
		dir = rootDir(t)
		file = dir + "/vars"
	}
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	spec := Spec{
		Env:   []string{"PATH=/usr/bin:/bin", "KEPT=own", "BASE=container"},
		Setup: Setup{EnvFiles: []string{file, "-" + dir + "/missing"}, ProtectedVars: []string{"KEPT"}},
	}
	const script = `echo "$NEW $KEPT $BASE $HINIT_RUN"`
	write("NEW='a b'\nKEPT=file\nexport BASE=file # why\nHINIT_RUN=stolen\n")
	if out, code := runShell(t, spec, script); code != 0 || !strings.HasPrefix(out, "a b own file ") || strings.Contains(out, "stolen") {
		t.Errorf("code %d, it has %q", code, out)
	}
	write("NEW=later\n")
	if out, _ := runShell(t, spec, script); !strings.HasPrefix(out, "later own container ") {
		t.Errorf("then it has %q", out)
	}
}

// A mounted Secret of a pod can be an env_file. The kubelet mounts it as links into a directory that it exchanges as a whole.
func TestASecretIsADirectoryOfVariables(t *testing.T) {
	dir := t.TempDir()
	if os.Geteuid() == 0 {
		dir = rootDir(t)
	}
	version := func(name, token string) {
		t.Helper()
		for key, value := range map[string]string{"TOKEN": token + "\n", "tls.crt": "no variable"} {
			if err := errors.Join(os.MkdirAll(dir+"/"+name, 0o700), os.WriteFile(dir+"/"+name+"/"+key, []byte(value), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(os.Symlink(name, dir+"/new"), os.Rename(dir+"/new", dir+"/..data")); err != nil {
			t.Fatal(err)
		}
	}
	version("..1", "a = 'b'")
	for _, key := range []string{"TOKEN", "tls.crt"} {
		if err := os.Symlink("..data/"+key, dir+"/"+key); err != nil {
			t.Fatal(err)
		}
	}
	spec := Spec{Env: []string{"PATH=/usr/bin:/bin"}, Setup: Setup{EnvFiles: []string{dir}}}
	if out, code := runShell(t, spec, `echo "$TOKEN"; env`); code != 0 || !strings.HasPrefix(out, "a = 'b'\n") || strings.Contains(out, "tls") {
		t.Errorf("code %d, it has %q", code, out)
	}
	version("..2", "later")
	if out, _ := runShell(t, spec, `echo "$TOKEN"`); out != "later\n" {
		t.Errorf("after the Secret has changed it has %q", out)
	}
	if os.Geteuid() != 0 {
		return
	}
	if err := os.Chown(dir, 10000, 10000); err != nil {
		t.Fatal(err)
	}
	if out, code := runShell(t, spec, `echo "$TOKEN"`); code != 126 || out == "later\n" {
		t.Errorf("root read another user's directory: code %d, %q", code, out)
	}
}

// Docker's convention: NAME_FILE names the file that contains the value of NAME.
func TestASecretOfAFileIsAVariable(t *testing.T) {
	file := rootDir(t) + "/key"
	if err := os.WriteFile(file, []byte("sk-1 \"#=\n"), 0o400); err != nil {
		t.Fatal(err)
	}
	spec := Spec{Env: []string{"PATH=/usr/bin:/bin", "API_KEY_FILE=" + file}, Setup: Setup{EnvFiles: []string{"API_KEY=" + file}}}
	if out, code := runShell(t, spec, `echo "$API_KEY"`); code != 0 || out != "sk-1 \"#=\n" {
		t.Errorf("code %d, it has %q", code, out)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if out, code := runShell(t, spec, "echo started"); code != 126 {
		t.Errorf("without the file: code %d, %q", code, out)
	}
	if os.Geteuid() != 0 {
		return
	}
	if err := os.WriteFile(file, []byte("evil"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(file, 10000, 10000); err != nil {
		t.Fatal(err)
	}
	if out, code := runShell(t, spec, `echo "$API_KEY"`); code != 126 || strings.Contains(out, "evil\n") {
		t.Errorf("root read another user's file: code %d, %q", code, out)
	}
}

func rootDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/root", "hinit-env") //nolint:usetesting // t.TempDir is below a directory that others can write
	if err != nil {
		t.Skip("root has no home here:", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestAFileOfVariablesThatCantBeReadIsNoStart(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mkfifo(dir+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{dir + "/missing", dir + "/fifo", dir + "/fifo/x"} {
		if _, code := runShell(t, Spec{Setup: Setup{EnvFiles: []string{file}}}, "echo started"); code != 126 {
			t.Errorf("with %s the code is %d", file, code)
		}
	}
}

// Root must read no env_file of another user and follow no link of another user.
func TestRootReadsNoFileOfVariablesOfOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be led")
	}
	dir := t.TempDir()
	own := rootDir(t) + "/vars"
	for file, owner := range map[string]int{own: 0, dir + "/theirs": 10000} {
		if err := errors.Join(os.WriteFile(file, []byte("X=1\n"), 0o644), os.Chown(file, owner, owner)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chown(dir, 10000, 10000), os.Symlink(own, dir+"/link")); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{dir + "/theirs", dir + "/link"} {
		if out, code := runShell(t, Spec{Setup: Setup{EnvFiles: []string{file}}}, "echo $X"); code != 126 || out == "1\n" {
			t.Errorf("root read %s: code %d, %q", file, code, out)
		}
	}
	if out, code := runShell(t, Spec{Setup: Setup{EnvFiles: []string{own}}}, "echo $X"); code != 0 || out != "1\n" {
		t.Errorf("of its own it reads %q, code %d", out, code)
	}
}

// A negative niceness must work for a service of another user. Without the capability it is a permanent error.
func TestAPriorityThatTakesAPrivilegeIsSetBeforeTheUserChanges(t *testing.T) {
	spec := Spec{Setup: Setup{Nice: -3}, Dir: "/", Cred: &Cred{UID: 10000, GID: 10001, Groups: []uint32{10002}}}
	if os.Geteuid() != 0 || !hasCapability(unix.CAP_SYS_NICE) {
		spec.ID, spec.Argv, spec.Cred = 1, []string{"/bin/true"}, nil
		_, err := newTable(t).Spawn(spec)
		if bad := (*SpawnError)(nil); !errors.As(err, &bad) || !bad.Permanent() || !strings.Contains(err.Error(), "--cap-add SYS_NICE") {
			t.Errorf("got %v", err)
		}
		return
	}
	// The other user may not be able to read the test binary, so the process must execute the binary as root before the change.
	out, code := runShell(t, spec, "id -u; id -g; id -G; cut -d' ' -f19 /proc/$$/stat; grep -c 'CapEff:.0*$' /proc/$$/status")
	if code != 0 || out != "10000\n10001\n10001 10002\n"+nice(-3)+"\n1\n" {
		t.Errorf("code %d, it is %q", code, out)
	}
}

func TestAProcessorThatIsNotThereIsNoStart(t *testing.T) {
	_, err := newTable(t).Spawn(Spec{ID: 1, Name: "s", Argv: []string{"/bin/true"}, Setup: Setup{CPUs: "1023"}})
	if bad := (*SpawnError)(nil); !errors.As(err, &bad) || !bad.Permanent() || !strings.Contains(err.Error(), "cpu_affinity to 1023: there is none of them here") {
		t.Errorf("got %v", err)
	}
}

// A command of the test's own user without further settings is executed directly, without hinit's setup step.
func TestASpawnWithoutASetupTakesNoStage(t *testing.T) {
	own := Spec{Dir: "/x", Cred: &Cred{UID: uint32(os.Geteuid())}}
	if own.needsSetup() || own.Setup.needsPrivilege() || own.changesUser() || len(own.setupWords()) != 0 {
		t.Errorf("the zero value is %v", own.setupWords())
	}
	s := Spec{Cred: &Cred{UID: 1, GID: 2, Groups: []uint32{3}}, Dir: "/x", DiesWithStarter: true, Setup: Setup{
		Nice: -1, IOClass: 2, IOLevel: 3, CPUs: "0", Umask: "077", NoNewPrivs: true, EnvFiles: []string{"/a", "-/b"}, ProtectedVars: []string{"K"},
	}}
	want := []string{"nice=-1", "io=2:3", "cpus=0", "umask=077", "user=1:2:3", "dir=/x", "bound=" + strconv.Itoa(os.Getpid()), "env=/a", "env=-/b", "keep=K", "no_new_privs=1"}
	if got := s.setupWords(); !slices.Equal(got, want) {
		t.Errorf("the words are %q", got)
	}
}
