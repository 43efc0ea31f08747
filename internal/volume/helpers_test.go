package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"hinit/client"
	"hinit/internal/boot"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
	"hinit/internal/testkit"
	"hinit/internal/testproc"
)

// agentUID and agentGID are the ids of the agent in these tests. No account of this machine uses them.
const agentUID, agentGID = 10000, 10001

// childEnv makes the test binary run one of childChecks on a volume. Its value names the check and the volume.
const childEnv = "BOOT_TEST_CHILD"

// In init, the main goroutine runs on the main thread (see package runtime).
func init() {
	if strings.HasPrefix(os.Getenv(childEnv), "mainthread ") {
		runtime.LockOSThread()
	}
}

func TestMain(m *testing.M) {
	if name, dir, ok := strings.Cut(os.Getenv(childEnv), " "); ok {
		if err := childChecks[name](dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testproc.Main()
	testkit.IsolateProcess()
	allHomesTimeout, homeTimeout = testkit.Patience, testkit.Patience
	goleak.VerifyTestMain(m)
}

// runInChild runs a check in a child process. edit may change the command first.
func runInChild(t *testing.T, name, dir string, edit func(*exec.Cmd)) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"="+name+" "+dir)
	edit(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", name, err, out)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func agentActor() *fsutil.Actor {
	return fsutil.NewActor(fsutil.Identity{UID: agentUID, GID: agentGID, Groups: []uint32{agentGID}})
}

// tempDir makes a directory that every user can enter.
func tempDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Chmod(filepath.Dir(dir), 0o755))
	return dir
}

// newVolumeDir makes a data directory that belongs to root, as a container engine does.
func newVolumeDir(t testing.TB) string {
	t.Helper()
	home := tempDir(t) + "/data"
	must(t, os.Mkdir(home, 0o755))
	return home
}

type recorder struct {
	mu    sync.Mutex
	lines []string
}

func (r *recorder) say(l boot.LogLine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, l.Text)
}

func (r *recorder) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.lines, "\n")
}

// options returns the options of a container with this volume, and with test files in place of the image's.
func options(t testing.TB, home string, env map[string]string) (Options, *recorder) {
	t.Helper()
	r := &recorder{}
	return optionsIn(home, filepath.Dir(home), env, r), r
}

func optionsIn(home, image string, env map[string]string, r *recorder) Options {
	return Options{
		Options: boot.Options{Home: home, Logs: home + "/logs/gateways", User: "hermes", Agent: agentActor(), Env: environ(env), ScratchDir: image + "/scratch", Say: r.say},
		Image:   ImagePaths{Install: image + "/install", BakedBrowser: image + "/baked", Environment: image + "/environment"},
	}
}

func writeInstallDir(t testing.TB, o Options) {
	t.Helper()
	for name, text := range map[string]string{
		".env.example": "A=b", "cli-config.yaml.example": "config: 1\n", "docker/SOUL.md": "I am\n",
	} {
		writeFile(t, o.Image.Install+"/"+name, text)
	}
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(text), 0o644))
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return string(data)
}

func chownAll(t testing.TB, path string, uid int) {
	t.Helper()
	must(t, filepath.WalkDir(path, func(p string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(p, uid, uid))
	}))
}

func ownerText(t testing.TB, path string) string {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		return boot.WithoutPath(err).Error()
	}
	st := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%d:%d %04o", st.Uid, st.Gid, st.Mode&0o7777)
}

func wantOwner(t testing.TB, path, want string) {
	t.Helper()
	if got := ownerText(t, path); got != want {
		t.Errorf("%s is %s, want %s", path, got, want)
	}
}

func uidOf(t testing.TB, path string) int {
	t.Helper()
	info, err := os.Lstat(path)
	must(t, err)
	return int(info.Sys().(*syscall.Stat_t).Uid)
}

func mountTmpfs(t testing.TB, dir string) {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755))
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
}

func environ(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}

// prepareBoot does the whole preparation of a boot: the part of hinit and the part of the boot program.
func prepareBoot(ctx context.Context, o Options) boot.Report {
	var more []boot.Phase
	if _, err := os.Stat(o.withDefaults().Image.Seed); err == nil {
		more = append(more, boot.Phase{Name: "plant", Run: func(ctx context.Context, s *boot.Step) error { return FillEmptyHome(ctx, o, s) }})
	}
	r := boot.Prepare(ctx, o.Options, more...)
	CompleteBoot(ctx, o, r)
	return *r
}

func noProgress(client.Repair) {}
