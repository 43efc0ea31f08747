package lease

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
	"hinit/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.LimitParallel(16)
	os.Exit(m.Run())
}

const testTimeout = 2 * time.Minute

// acquireResult is the result of an Acquire.
type acquireResult struct {
	lost <-chan error
	err  error
}

// pendingAcquire is an Acquire in another goroutine. busy gets the function that names the holder, got the result.
type pendingAcquire struct {
	busy chan func() Holder
	got  chan acquireResult
}

func newVolume(t *testing.T, home string) *Volume {
	t.Helper()
	return NewVolume(home, fsutil.ProcessActor(), func(string) {})
}

func startAcquire(ctx context.Context, v *Volume) pendingAcquire {
	a := pendingAcquire{make(chan func() Holder, 1), make(chan acquireResult, 1)}
	go func() {
		lost, err := v.Acquire(ctx, func(holder func() Holder) { a.busy <- holder })
		a.got <- acquireResult{lost, err}
	}()
	return a
}

func receiveInTime[T any](t *testing.T, c <-chan T, what string) (value T) {
	t.Helper()
	select {
	case value = <-c:
	case <-time.After(testTimeout):
		t.Fatalf("no %s within %v", what, testTimeout)
	}
	return value
}

// mustAcquire acquires the lock or fails the test.
func mustAcquire(t *testing.T, v *Volume) <-chan error {
	t.Helper()
	g := receiveInTime(t, startAcquire(t.Context(), v).got, "lock")
	if g.err != nil {
		t.Fatal(g.err)
	}
	return g.lost
}

// confirmMu is held for reading while a lock on a server is confirmed.
var confirmMu sync.RWMutex

// release closes the files of the lock, as the end of its process would. It waits for a running confirmation.
func release(v *Volume) {
	confirmMu.Lock()
	defer confirmMu.Unlock()
	v.heldLock.release()
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// No file of the agent in the directory of the lock can take the lock from its holder. A second init must wait until the kernel
// releases the lock.
func TestASecondInitWaitsWhateverTheAgentWrites(t *testing.T) {
	home := t.TempDir()
	dir := filepath.Join(home, DirName)
	must(t, os.Mkdir(dir, 0o755))
	old := []string{"lease", "waiting", "lease.50", "lease.4503599627370496", ".lease.1.tmp"}
	for i := range 3000 {
		old = append(old, fmt.Sprintf("lease.%d", 100+i))
	}
	for _, name := range old {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(`{"version":1,"epoch":9}`), 0o644))
	}
	one, two := newVolume(t, home), newVolume(t, home)
	if lost := mustAcquire(t, one); lost != nil {
		t.Error("the lock of a local disk can be lost")
	}
	a := startAcquire(t.Context(), two)
	holder := receiveInTime(t, a.busy, "word that it waits")
	host, err := os.Hostname()
	must(t, err)
	if h := holder(); h.Host != printable(host) || h.Since.IsZero() || h.PID != 0 {
		t.Errorf("the holder is %+v", h)
	}
	must(t, os.RemoveAll(dir), os.WriteFile(filepath.Join(home, "lease.51"), nil, 0o644), os.Symlink("/etc", dir))
	select {
	case g := <-a.got:
		t.Fatalf("it did not wait: %v", g.err)
	case <-time.After(50 * time.Millisecond): // a second init that does not wait would have got the lock by now
	}
	if err := one.Check(); err != nil {
		t.Error(err)
	}
	release(one)
	if g := receiveInTime(t, a.got, "lock"); g.err != nil {
		t.Error(g.err)
	}
	if _, err := os.Stat("/etc/holder"); err == nil {
		t.Error("the note went through a link")
	}
}

// Acquire must end with its context, and must release a lock that it gets at that moment.
func TestAWaitEndsWithItsContext(t *testing.T) {
	home := t.TempDir()
	one, two, three := newVolume(t, home), newVolume(t, home), newVolume(t, home)
	mustAcquire(t, one)
	ctx, cancel := context.WithCancelCause(t.Context())
	a := startAcquire(ctx, two)
	receiveInTime(t, a.busy, "word that it waits")
	ended := errors.New("the container has ended")
	cancel(ended)
	if g := receiveInTime(t, a.got, "end"); !errors.Is(g.err, ended) {
		t.Errorf("it ended with %v", g.err)
	}
	release(one)
	mustAcquire(t, three)
}

// A re-executed hinit keeps the lock, because it belongs to the open file, which is handed over.
func TestAnotherImageHasTheLockAtOnce(t *testing.T) {
	home := t.TempDir()
	one, next, two := newVolume(t, home), newVolume(t, home), newVolume(t, home)
	mustAcquire(t, one)
	next.TakeOver(one.HandOver())
	mustAcquire(t, next)
	a := startAcquire(t.Context(), two)
	receiveInTime(t, a.busy, "word that it waits")
	release(next)
	receiveInTime(t, a.got, "lock")
	empty := newVolume(t, filepath.Join(home, "none"))
	empty.TakeOver(&Handover{})
	if g := receiveInTime(t, startAcquire(t.Context(), empty).got, "answer"); !errors.Is(g.err, os.ErrNotExist) {
		t.Errorf("without a directory: %v", g.err)
	}
}

// A waiting init must name the process of its own container that holds the lock.
func TestAProcessOfTheAgentThatHoldsTheLockIsNamed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs another user")
	}
	home, err := os.MkdirTemp("", "lease") //nolint:usetesting // another user can't enter a directory of t.TempDir
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	must(t, os.Chmod(home, 0o755))
	agent := exec.Command("flock", home, "sh", "-c", "echo locked; exec sleep 1000")
	agent.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, Setpgid: true}
	said, err := agent.StdoutPipe()
	must(t, err)
	if err := agent.Start(); err != nil {
		t.Skip(err)
	}
	end := func() { _ = syscall.Kill(-agent.Process.Pid, syscall.SIGKILL) }
	defer func() { _ = agent.Wait() }()
	defer end()
	_, err = said.Read(make([]byte, 1))
	must(t, err)
	v := newVolume(t, home)
	a := startAcquire(t.Context(), v)
	holder := receiveInTime(t, a.busy, "word that it waits")
	h := holder()
	if h.PID != agent.Process.Pid || !strings.Contains(h.String(), "(flock) of this container, which is no hinit; end that process") {
		t.Errorf("it names %v", h)
	}
	end()
	must(t, receiveInTime(t, a.got, "lock").err)
}

// simulateServer makes v act as a volume on a server that keeps locks itself.
func simulateServer(v *Volume) *Volume {
	v.sharesLocks = func(*os.File) (bool, string) { return true, "" }
	v.confirmEvery, v.confirmLimit = 10*time.Millisecond, 300*time.Millisecond
	v.confirm = func(v *Volume, file *os.File) error {
		confirmMu.RLock()
		defer confirmMu.RUnlock()
		return v.confirmLock(file)
	}
	return v
}

// lockAsOtherMachine takes the lock of the lock file as another machine would.
func lockAsOtherMachine(t *testing.T, home string) *os.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(home, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	must(t, err)
	must(t, setOFDLock(f))
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// An init must wait until another machine has released the lock file.
func TestOnAServerAnotherMachineIsWaitedFor(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	must(t, os.Mkdir(filepath.Join(home, DirName), 0o755))
	other := lockAsOtherMachine(t, home)
	v := simulateServer(newVolume(t, home))
	v.confirmEvery = lockRetryInterval * 3 / 2
	a := startAcquire(t.Context(), v)
	receiveInTime(t, a.busy, "word that it waits")
	released := time.Now()
	must(t, other.Close())
	g := receiveInTime(t, a.got, "lock")
	must(t, g.err)
	must(t, v.Check())
	if took := time.Since(released); took < v.confirmEvery {
		t.Errorf("it serves after %v, beside a holder that proves its lock each %v", took, v.confirmEvery)
	}
	late := simulateServer(newVolume(t, t.TempDir())) // this home has no directory for the lock file
	mustAcquire(t, late)
}

// The lock counts as lost when its name leads to another file, another machine has it, or the server refuses or doesn't answer.
// Then nothing may start.
func TestALockOnAServerIsLost(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(f *os.File, name string) error{
		"renamed": func(_ *os.File, name string) error {
			return errors.Join(os.Rename(name, name+".away"), os.WriteFile(name, []byte("x"), 0o600))
		},
		"removed": func(_ *os.File, name string) error { return os.RemoveAll(filepath.Dir(name)) },
		"taken": func(f *os.File, name string) error {
			other, err := os.OpenFile(name, os.O_RDWR, 0)
			must(t, err, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK}), setOFDLock(other))
			t.Cleanup(func() { _ = other.Close() })
			return nil
		},
		"refused": func(*os.File, string) error { return unix.EIO },
		"silent":  nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			v := simulateServer(newVolume(t, home))
			good, hang := 0, make(chan struct{})
			defer close(hang)
			if v.confirmLimit = testTimeout; name == "silent" {
				v.confirmLimit = time.Millisecond
			}
			v.confirm = func(v *Volume, f *os.File) error {
				if name == "silent" {
					<-hang
				}
				if good++; good <= 3 {
					return v.confirmLock(f)
				}
				return errors.Join(spoil(f, filepath.Join(home, lockName)), v.confirmLock(f))
			}
			why := receiveInTime(t, mustAcquire(t, v), "loss")
			if !strings.Contains(why.Error(), "is lost") || name != "silent" && good != 4 {
				t.Errorf("after %d proofs it is lost because %v", good, why)
			}
			if v.Check() == nil || v.HandOver().Lock != nil {
				t.Error("a lost lock counts")
			}
		})
	}
}

// After a pause of the process nothing may start before the next confirmation of the lock. The time since the last confirmation
// decides.
func TestAfterAPauseNothingStartsUnproved(t *testing.T) {
	v := simulateServer(newVolume(t, t.TempDir()))
	v.confirmEvery = time.Hour
	mustAcquire(t, v)
	must(t, v.Check())
	v.mu.Lock()
	v.confirmedAt -= v.confirmEvery + v.confirmLimit + confirmGrace
	v.mu.Unlock()
	if v.Check() == nil {
		t.Error("it may start something")
	}
}

// Each line of /proc/self/mountinfo says whether locks are shared with other machines.
func TestWhichFileSystemsShareTheirLocks(t *testing.T) {
	line := "36 25 0:32 / /opt/data rw,relatime shared:1 - %s server:/export rw,%s\n"
	for _, tt := range []struct {
		name, options string
		shared        bool
		says          string
	}{
		{"nfs4", "vers=4.2,local_lock=none", true, ""},
		{"nfs4", "vers=4.2,local_lock=all", false, "nfs4, mounted with local_lock=all"},
		{"nfs", "vers=3,nolock,local_lock=all", false, "nfs, mounted with nolock"},
		{"cifs", "vers=3.1.1", true, ""},
		{"fuse.glusterfs", "user_id=0", true, ""},
		{"fuse.sshfs", "user_id=0", false, "fuse.sshfs"},
		{"9p", "trans=virtio", false, "9p"},
		{"virtiofs", "", false, "virtiofs"},
	} {
		shared, alone := mountSharesLocks(fmt.Appendf(nil, "1 1 8:1 / / rw - ext4 /dev/sda rw\n"+line, tt.name, tt.options), 36)
		if shared != tt.shared || !strings.Contains(alone, tt.says) || (alone == "") != tt.shared {
			t.Errorf("%s %s: %v, %q", tt.name, tt.options, shared, alone)
		}
	}
	if shared, alone := mountSharesLocks(nil, 7); shared || alone == "" {
		t.Errorf("an unknown mount: %v, %q", shared, alone)
	}
	dir, err := os.Open("/proc")
	must(t, err)
	defer dir.Close()
	if shared, alone := serverSharesLocks(dir); shared || !strings.Contains(alone, "proc") {
		t.Errorf("/proc: %v, %q", shared, alone)
	}
}

// A holder file that the agent has forged can only show a wrong name, without control characters.
func TestAForgedNoteIsShownAsAWord(t *testing.T) {
	home := t.TempDir()
	v := newVolume(t, home)
	must(t, os.Mkdir(filepath.Join(home, DirName), 0o755))
	note := filepath.Join(home, holderFile)
	for text, want := range map[string]string{
		`{"host":"\u001b[31mred\n","since":"2026-01-02T03:04:05Z"}`: "another hinit, by its note [31mred since 2026-01-02T03:04:05Z",
		"nonsense":               "another process",
		strings.Repeat("x", 1e5): "another process",
	} {
		must(t, os.WriteFile(note, []byte(text), 0o644))
		_ = v.withDir(v.readHolderFile)
		if got := v.lastHolder.Load().String(); got != want {
			t.Errorf("%.40q: %q", text, got)
		}
	}
	if !slices.Contains([]error{nil, unix.ENOENT}, unix.Unlink(note)) {
		t.Error("the note stays")
	}
}

// A volume on a server whose directory belongs to root, such as a new GlusterFS volume, can be locked and served.
func TestAnEmptyVolumeOfRootsOnAServerIsLocked(t *testing.T) {
	testkit.NeedRoot(t)
	home := filepath.Join(t.TempDir(), "home")
	must(t, os.Mkdir(home, 0o755), os.Chmod(filepath.Dir(home), 0o755), os.Chmod(filepath.Dir(filepath.Dir(home)), 0o755))
	v := simulateServer(newVolume(t, home))
	v.actor = fsutil.NewActor(fsutil.Identity{UID: 10000, GID: 10000})
	mustAcquire(t, v)
	must(t, v.Check())
	if _, err := os.Stat(filepath.Join(home, holderFile)); err != nil {
		t.Error(err)
	}
}

// Root must not follow a link in place of the data directory. If HERMES_HOME is below a directory of the agent, the agent can
// put a link to /root there, and the start would make /root/.hinit.
func TestRootMakesNothingWhereALinkInThePlaceOfTheDataDirectoryLeads(t *testing.T) {
	testkit.NeedRoot(t)
	for _, server := range []bool{false, true} {
		top := t.TempDir()
		roots, agents := filepath.Join(top, "root"), filepath.Join(top, "agents")
		must(t, os.Mkdir(roots, 0o700), os.Mkdir(agents, 0o755), os.Chown(agents, 10000, 10000), os.Chmod(top, 0o755), os.Chmod(filepath.Dir(top), 0o755))
		for home, target := range map[string]string{filepath.Join(agents, "home"): roots, filepath.Join(agents, "way"): top} {
			must(t, os.Symlink(target, home), os.Lchown(home, 10000, 10000))
		}
		for _, home := range []string{filepath.Join(agents, "home"), filepath.Join(agents, "way", "root")} {
			v := newVolume(t, home)
			v.actor = fsutil.NewActor(fsutil.Identity{UID: 10000, GID: 10000})
			if server {
				simulateServer(v)
			}
			if g := receiveInTime(t, startAcquire(t.Context(), v).got, "answer"); g.err == nil || !strings.Contains(g.err.Error(), "symbolic link") {
				t.Errorf("on a server %v: the lock of %s is taken: %v", server, home, g.err)
			}
			if left, err := os.ReadDir(roots); err != nil || len(left) > 0 {
				t.Errorf("on a server %v, by %s: root's directory has %v: %v", server, home, left, err)
			}
		}
	}
}

// A start must remove none of root's files in .hinit. The agent may have renamed a directory that root owns to .hinit.
func TestRootRemovesNoFileOfADirectoryThatTheAgentCallsHinit(t *testing.T) {
	testkit.NeedRoot(t)
	for _, server := range []bool{false, true} {
		home := filepath.Join(t.TempDir(), "home")
		dir := filepath.Join(home, DirName)
		must(t, os.MkdirAll(dir+"/lock", 0o700), os.Chmod(filepath.Dir(home), 0o755), os.Chmod(filepath.Dir(filepath.Dir(home)), 0o755), os.Chown(home, 10000, 10000))
		must(t, os.WriteFile(dir+"/precious", nil, 0o600), os.WriteFile(dir+"/lock/precious", nil, 0o600))
		v := newVolume(t, home)
		v.actor = fsutil.NewActor(fsutil.Identity{UID: 10000, GID: 10000})
		if server {
			simulateServer(v)
		}
		mustAcquire(t, v)
		left, err := filepath.Glob(home + "/.hinit*/precious")
		below, err2 := filepath.Glob(home + "/.hinit*/lock/precious")
		if must(t, err, err2); len(left) != 1 || len(below) != 1 {
			t.Errorf("on a server %v: %v and %v are left", server, left, below)
		}
		release(v)
	}
}

// The init must get the lock, also on a server, and write into no other file. The agent has replaced the lock file and the
// holder file. In their place are 60,000 names, a link, a FIFO, a file, a closed directory, or a hard link to root's file.
func TestNothingInHinitKeepsTheInitFromItsVolume(t *testing.T) {
	testkit.NeedRoot(t)
	const agent = 10000
	for name, put := range map[string]func(dir, roots string) error{
		"names": func(dir, _ string) error {
			err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(dir+"/lease.0", nil, 0o600))
			// The loop makes hard links, because some file systems need a millisecond to make an inode.
			for i := 1; err == nil && i < 60000; i++ {
				err = os.Link(dir+"/lease.0", fmt.Sprintf("%s/lease.%d", dir, i))
			}
			return err
		},
		"link":          func(dir, _ string) error { return os.Symlink("/etc", dir) },
		"fifo":          func(dir, _ string) error { return unix.Mkfifo(dir, 0o600) },
		"file":          func(dir, _ string) error { return os.WriteFile(dir, nil, 0o600) },
		"mode 0":        func(dir, _ string) error { return os.Mkdir(dir, 0) },
		"lock is fifo":  func(dir, _ string) error { return errors.Join(os.Mkdir(dir, 0o755), unix.Mkfifo(dir+"/lock", 0o600)) },
		"lock is tree":  func(dir, _ string) error { return os.MkdirAll(dir+"/lock/a/b", 0o755) },
		"lock is roots": func(dir, roots string) error { return errors.Join(os.Mkdir(dir, 0o755), os.Link(roots, dir+"/lock")) },
		"note is roots": func(dir, roots string) error { return errors.Join(os.Mkdir(dir, 0o755), os.Link(roots, dir+"/holder")) },
		"note is link": func(dir, roots string) error {
			return errors.Join(os.Mkdir(dir, 0o755), os.Symlink(roots, dir+"/holder"))
		},
	} {
		for _, server := range []bool{false, true} {
			if server && name == "names" {
				continue // on a server, the name is the lock file itself
			}
			t.Run(fmt.Sprintf("%s, on a server %v", name, server), func(t *testing.T) {
				top := t.TempDir()
				home, roots := filepath.Join(top, "home"), filepath.Join(top, "roots")
				must(t, os.Chmod(filepath.Dir(top), 0o755), os.Chmod(top, 0o755), os.Mkdir(home, 0o755), os.WriteFile(roots, []byte("mine"), 0o600))
				dir := filepath.Join(home, DirName)
				must(t, put(dir, roots), os.Lchown(dir, agent, agent), os.Chown(home, agent, agent))
				one, two := newVolume(t, home), newVolume(t, home)
				one.actor = fsutil.NewActor(fsutil.Identity{UID: agent, GID: agent})
				if server {
					simulateServer(one)
				}
				mustAcquire(t, one)
				must(t, one.Check())
				ctx, cancel := context.WithCancel(t.Context())
				a := startAcquire(ctx, two)
				receiveInTime(t, a.busy, "word that it waits")
				cancel()
				receiveInTime(t, a.got, "end")
				release(one) // ends the other volume's wait for the lock
				if text, err := os.ReadFile(roots); string(text) != "mine" {
					t.Errorf("root's file has %q, %v", text, err)
				}
				var st unix.Stat_t
				if err := unix.Stat(roots, &st); err != nil || st.Uid != 0 || st.Mode&0o777 != 0o600 {
					t.Errorf("root's file has uid %d and mode %o, %v", st.Uid, st.Mode, err)
				}
				if _, err := os.Stat("/etc/holder"); err == nil {
					t.Error("the note went through a link")
				}
			})
		}
	}
}

// An init that the agent starts must recognize the holder of the lock, PID 1, as hinit. It must not advise to end that process.
func TestPID1IsNoStranger(t *testing.T) {
	testkit.NeedRoot(t)
	v := newVolume(t, t.TempDir())
	mustAcquire(t, v)
	defer release(v)
	if pid, command := findOtherHolder(lockIdentity(v.heldLock.Lock), 10000); pid != 0 {
		t.Errorf("root's process %d (%s) is a stranger to the agent", pid, command)
	}
}

// rerunAsAgent runs the calling test again in a process of the agent's user. It returns true in the new process.
func rerunAsAgent(t *testing.T, home string) bool {
	t.Helper()
	if os.Getenv("LEASE_HOME") != "" {
		return true
	}
	testkit.NeedRoot(t)
	cmd := exec.Command("/proc/self/exe", "-test.v", "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$")
	cmd.Env = append(os.Environ(), "LEASE_HOME="+home, "TMPDIR=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 10000, Gid: 10000}, Pdeathsig: syscall.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// otherMachineVolume returns the Volume of an init on another machine, on a server.
func otherMachineVolume(home string, warn func(string)) *Volume {
	v := simulateServer(NewVolume(home, fsutil.NewActor(fsutil.Identity{UID: 10000, GID: 10000}), warn))
	v.sharesLocks = func(dir *os.File) (bool, string) {
		_ = unix.Flock(int(dir.Fd()), unix.LOCK_UN) // releases the lock of the directory, because another machine would not see it
		return true, ""
	}
	v.confirmEvery, v.confirmLimit = 200*time.Millisecond, time.Second
	return v
}

// agentHome returns a data directory that belongs to the agent. It is the same in both processes of a test that calls
// rerunAsAgent.
func agentHome(t *testing.T) string {
	t.Helper()
	if home := os.Getenv("LEASE_HOME"); home != "" {
		return home
	}
	home := filepath.Join(t.TempDir(), "home")
	must(t, os.Mkdir(home, 0o755), os.Chown(home, 10000, 10000), os.Chmod(filepath.Dir(home), 0o755), os.Chmod(filepath.Dir(filepath.Dir(home)), 0o755))
	return home
}

// Two machines must never serve together, although an agent on a volume where root has no rights closes .hinit or the data
// directory. EACCES must not count as a file system without locks.
func TestADirectoryThatTheAgentClosesMakesNoTwoInitsServe(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]struct {
		waits bool // whether the second init already waits when the agent closes the directory
		close func(home string) error
		open  func(home string) error
	}{
		"hinit, while another one waits":   {true, func(home string) error { return os.Chmod(home+"/"+DirName, 0) }, nil},
		"hinit, before another one starts": {false, func(home string) error { return os.Chmod(home+"/"+DirName, 0) }, nil},
		"lock, before another one starts":  {false, func(home string) error { return os.Chmod(home+"/"+lockName, 0) }, nil},
		"home, before another one starts": {
			false,
			func(home string) error { return os.Chmod(home, 0) },
			func(home string) error { return os.Chmod(home, 0o755) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home := agentHome(t)
			if !rerunAsAgent(t, home) {
				return
			}
			quiet := func(string) {}
			one, two := otherMachineVolume(home, quiet), otherMachineVolume(home, quiet)
			lost := mustAcquire(t, one)
			var second pendingAcquire
			if start.waits {
				second = startAcquire(t.Context(), two)
				receiveInTime(t, second.busy, "word that it waits")
			}
			must(t, start.close(home))
			if !start.waits {
				second = startAcquire(t.Context(), two)
			}
			var has acquireResult
			select {
			case why := <-lost:
				t.Log(why)
			case has = <-second.got:
				t.Fatalf("two inits serve: %v", has.err)
			case <-time.After(testTimeout):
				t.Fatal("the first does not notice")
			}
			first := startAcquire(t.Context(), one) // by now the first init has killed its services, so it asks for the lock again
			if start.open != nil {
				time.Sleep(2 * lockRetryInterval)
				must(t, start.open(home))
			}
			other, loser := first, two // one of the two inits gets the lock, and the other waits
			select {
			case has = <-first.got:
				other = second
			case has = <-second.got:
				loser = one
			case <-time.After(testTimeout):
				t.Fatal("none serves")
			}
			must(t, has.err)
			select {
			case g := <-other.got:
				t.Errorf("two inits serve: %v", g.err)
			case why := <-has.lost:
				t.Errorf("the one that serves lost it: %v", why)
			case <-time.After(3 * lockRetryInterval):
			}
			if loser.heldLock.File != nil && loser.Check() == nil {
				t.Error("the other one may start something")
			}
		})
	}
}

// An init that had to move .hinit away must wait as long as the old holder may still serve. A holder that waits for the answer
// of a slow server may serve for 30 s.
func TestAnInitThatMovedTheLockAwayWaitsForASlowServer(t *testing.T) {
	t.Parallel()
	home := agentHome(t)
	if !rerunAsAgent(t, home) {
		return
	}
	one, two := otherMachineVolume(home, func(string) {}), otherMachineVolume(home, func(string) {})
	one.confirm = func(v *Volume, file *os.File) error {
		time.Sleep(v.confirmLimit + confirmGrace/2)
		return v.confirmLock(file)
	}
	lost := mustAcquire(t, one)
	time.Sleep(one.confirmEvery / 2)
	must(t, os.Chmod(filepath.Join(home, DirName), 0))
	second := startAcquire(t.Context(), two)
	select {
	case why := <-lost:
		t.Log(why)
	case g := <-second.got:
		t.Fatalf("two inits serve: %v", g.err)
	case <-time.After(testTimeout):
		t.Fatal("the first does not notice")
	}
	must(t, receiveInTime(t, second.got, "lock").err)
}

// A holder must confirm its lock under the present name, not under a name in the kernel's cache. A cached .hinit leads to the
// old lock file for up to a minute, and two inits would serve. The test uses FUSE; as with NFS, stat of a directory shows that
// it has changed.
func TestAHolderSeesThatAnotherMachineMovedTheLockAway(t *testing.T) {
	testkit.NeedRoot(t)
	home := t.TempDir()
	for _, name := range []string{"", DirName} {
		t.Run("in "+strconv.Quote(name), func(t *testing.T) {
			var moved atomic.Bool
			mountCachedFS(t, home, name, &moved)
			d, err := fsutil.OpenDir(home, nil)
			must(t, err)
			defer d.Close()
			file, err := d.Open(lockName)
			must(t, err)
			defer file.Close()
			must(t, checkLockName(d, file))
			moved.Store(true)
			if err = checkLockName(d, file); err == nil || !strings.Contains(err.Error(), "another file") {
				t.Errorf("the proof says: %v", err)
			}
		})
	}
}

// mountCachedFS mounts a FUSE file system with the lock file, which the kernel may cache for an hour. Once moved is set,
// the names in dir lead to other files.
func mountCachedFS(t *testing.T, home, dir string, moved *atomic.Bool) {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Mount("cached", home, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd))
	}
	if err != nil {
		t.Skip("no FUSE here: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(home, unix.MNT_DETACH) })
	const root, hinit, lock, later = 1, 2, 3, 10
	order := binary.NativeEndian
	attr := func(node uint64) []byte {
		mode := uint32(unix.S_IFDIR | 0o755)
		if node%later == lock {
			mode = unix.S_IFREG | 0o644
		}
		b := order.AppendUint64(nil, node)
		return append(order.AppendUint32(append(b, make([]byte, 52)...), mode), make([]byte, 24)...)
	}
	send := func(code int32, unique uint64, body []byte) {
		b := order.AppendUint32(nil, uint32(16+len(body)))
		_, _ = unix.Write(fd, append(order.AppendUint64(order.AppendUint32(b, uint32(code)), unique), body...))
	}
	go func() {
		defer unix.Close(fd)
		for buf := make([]byte, 1<<18); ; {
			_, err := unix.Read(fd, buf)
			if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) {
				continue
			}
			if err != nil {
				return // the file system was unmounted
			}
			unique, node := order.Uint64(buf[8:]), order.Uint64(buf[16:])
			isDir := node%later == hinit && dir != "" || node == root && dir == ""
			switch code := order.Uint32(buf[4:]); code {
			case 26:
				b := order.AppendUint32(order.AppendUint32(nil, 7), 31)
				b = append(b, make([]byte, 12)...)
				b = order.AppendUint32(b, 1<<16)
				send(0, unique, append(b, make([]byte, 40)...))
			case 1:
				to := node - node%later + hinit
				if node%later == hinit {
					to = node + 1
				}
				if moved.Load() && isDir {
					to += later
				}
				b := order.AppendUint64(order.AppendUint64(nil, to), 0)
				b = order.AppendUint64(order.AppendUint64(b, 3600), 3600)
				send(0, unique, append(append(b, make([]byte, 8)...), attr(to)...))
			case 3:
				if name := map[uint64]string{root: DirName, hinit: "lock"}[node]; moved.Load() && isDir {
					b := order.AppendUint32(order.AppendUint64(nil, node), uint32(len(name)))
					send(3, 0, append(append(append(b, 0, 0, 0, 0), name...), 0))
				}
				b := append(order.AppendUint64(nil, 3600), make([]byte, 8)...)
				send(0, unique, append(b, attr(node)...))
			case 14:
				send(0, unique, make([]byte, 16))
			case 2, 36, 42:
			case 18, 25:
				send(0, unique, nil)
			default:
				send(-int32(unix.ENOSYS), unique, nil)
			}
		}
	}()
}

// An init must wait if the directory of the lock is closed and can't be moved. EACCES must not count as a file system without
// locks.
func TestAnInitThatMayNotOpenTheLockWaits(t *testing.T) {
	t.Parallel()
	home := agentHome(t)
	if os.Geteuid() == 0 {
		must(t, os.Chown(home, 0, 0), os.Mkdir(filepath.Join(home, DirName), 0o700))
	}
	if !rerunAsAgent(t, home) {
		return
	}
	warned := make(chan string, 100)
	a := startAcquire(t.Context(), otherMachineVolume(home, func(line string) { warned <- line }))
	for range 2 {
		if line := receiveInTime(t, warned, "warning"); !strings.Contains(line, "cannot lock") || !strings.Contains(line, "permission denied; if its .hinit is another user's, remove that") {
			t.Errorf("it warns: %s", line)
		}
	}
	select {
	case g := <-a.got:
		t.Errorf("it serves: %v", g.err)
	default:
	}
}
