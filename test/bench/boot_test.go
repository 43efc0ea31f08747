package bench

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	agentID = 10000
	// Number of files on the larger volume, all owned by another user.
	manyFiles = 200_000
	// Number of boots of each volume. The median counts.
	rounds = 9
	// Promised maximum ratio of the two boot times.
	maxRatio = 1.2
	// patience limits one boot, and later limits the repair of all files.
	patience, later = 30 * time.Second, 10 * time.Minute
)

// BenchmarkBootForeignFiles measures the time from the start of the init until the first gateway
// runs, with and without 200,000 foreign files on the volume. It fails if the ratio is too high,
// and then waits until the agent owns all files.
func BenchmarkBootForeignFiles(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root, for a PID namespace and for files of another user")
	}
	runtime.LockOSThread() // A container ends when the thread that started it ends.
	defer runtime.UnlockOSThread()
	dir, err := os.MkdirTemp("/var/tmp", "hinit-bench-") //nolint:usetesting // the directory is on a disk, as volumes are, and the agent can enter it
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		b.Fatal(err)
	}
	empty, full := newVolume(b, dir, "empty"), newVolume(b, dir, "full")
	full.fill(b, manyFiles)
	hinit, agent := binaries(b, dir)
	for _, v := range []*volume{empty, full} {
		v.hinit, v.agent = hinit, agent
	}
	for b.Loop() {
		measure(b, empty, full)
	}
}

func measure(b *testing.B, empty, full *volume) {
	b.Helper()
	var took [2][]time.Duration
	for range rounds {
		for i, v := range []*volume{empty, full} {
			v.reset(b)
			c := v.boot(b)
			took[i] = append(took[i], c.untilRunning)
			c.kill()
		}
	}
	onEmpty, onFull := median(took[0]), median(took[1])
	ratio := float64(onFull) / float64(onEmpty)
	b.ReportMetric(float64(onEmpty.Microseconds())/1000, "ms/empty")
	b.ReportMetric(float64(onFull.Microseconds())/1000, "ms/full")
	b.ReportMetric(ratio, "ratio")
	b.Logf("first gateway running: empty %v, full %v", took[0], took[1])
	if ratio > maxRatio {
		b.Errorf("the first gateway takes %.2f times as long with %d files of another user's, promised is %.1f", ratio, manyFiles, maxRatio)
	}

	full.reset(b)
	c := full.boot(b)
	defer c.kill()
	begin := time.Now()
	for {
		repair := c.repair(b)
		if repair != nil && repair.Done {
			if repair.Stopped != "" || repair.Failed > 0 {
				b.Errorf("the repair ended with %+v", *repair)
			}
			b.ReportMetric(repair.Seconds, "s/repair")
			break
		}
		if time.Since(begin) > later {
			b.Fatalf("the repair is not done: %+v", repair)
		}
		time.Sleep(100 * time.Millisecond)
	}
	if wrong := full.countForeignFiles(b); wrong > 0 {
		b.Errorf("%d files are not the agent's", wrong)
	}
}

func median[T cmp.Ordered](all []T) T {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

// volume is a data directory with two profiles.
type volume struct {
	dir, home    string
	hinit, agent string
}

func newVolume(tb testing.TB, dir, name string) *volume {
	tb.Helper()
	v := &volume{dir: filepath.Join(dir, name)}
	v.home = v.dir + "/data"
	for _, profile := range []string{"", "/profiles/coder"} {
		if err := os.MkdirAll(v.home+profile, 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	return v
}

func (v *volume) fill(tb testing.TB, n int) {
	tb.Helper()
	tops := []string{"profiles/coder/work", "cron/output", "sessions/old"}
	for i := range n {
		dir := fmt.Sprintf("%s/%s/%d", v.home, tops[i/1000%len(tops)], i/1000)
		if i%1000 == 0 {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				tb.Fatal(err)
			}
		}
		if err := os.WriteFile(fmt.Sprintf("%s/%d", dir, i), nil, 0o644); err != nil {
			tb.Fatal(err)
		}
	}
}

// reset gives all files to root, as after a restore or a docker cp, and makes both gateways wanted.
func (v *volume) reset(tb testing.TB) {
	tb.Helper()
	for _, profile := range []string{"", "/profiles/coder"} {
		for name, content := range map[string]string{"SOUL.md": "A profile.\n", "gateway_state.json": `{"desired_state":"running"}` + "\n"} {
			path := v.home + profile + "/" + name
			_ = os.Remove(path)
			if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
				tb.Fatal(err)
			}
		}
		_ = os.Remove(v.home + profile + "/gateway.pid")
	}
	_ = os.Remove(v.home + "/.hinit-repair-pending")
	if err := filepath.WalkDir(v.home, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, 0, 0)
	}); err != nil {
		tb.Fatal(err)
	}
	syscall.Sync() // Sync waits for the disk, because writing the data later would slow down the measurement.
}

// countForeignFiles counts the files that the agent does not own, except for SOUL.md, which the host may own.
func (v *volume) countForeignFiles(tb testing.TB) int {
	tb.Helper()
	n := 0
	if err := filepath.WalkDir(v.home, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if info.Sys().(*syscall.Stat_t).Uid != agentID && path != v.home+"/SOUL.md" {
			n++
			if n <= 3 {
				tb.Logf("not the agent's: %s", path)
			}
		}
		return nil
	}); err != nil {
		tb.Fatal(err)
	}
	return n
}

type bootedInit struct {
	v            *volume
	cmd          *exec.Cmd
	untilRunning time.Duration
}

// boot starts the init and waits until a gateway reports that it runs.
func (v *volume) boot(tb testing.TB) *bootedInit {
	tb.Helper()
	config := fmt.Sprintf(`home: %s
agent: {user: "%d:%d", binary: %s}
control: {socket: %s/control.sock}
boot: {hooks: []}
`, v.home, agentID, agentID, v.agent, v.dir)
	if err := os.WriteFile(v.dir+"/hinit.yaml", []byte(config), 0o644); err != nil {
		tb.Fatal(err)
	}
	cmd := container(v.hinit, []string{"HINIT_CONFIG=" + v.dir + "/hinit.yaml", "HERMES_HOME=" + v.home}, "init", "gateway", "run")
	r, w, err := os.Pipe()
	if err != nil {
		tb.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	w.Close()
	b := &bootedInit{v: v, cmd: cmd}
	var output strings.Builder
	if err := r.SetReadDeadline(begin.Add(patience)); err != nil {
		tb.Fatal(err)
	}
	for lines := bufio.NewScanner(r); lines.Scan(); {
		output.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), "gateway of profile") && strings.HasSuffix(lines.Text(), "is running") {
			b.untilRunning = time.Since(begin)
			break
		}
	}
	if b.untilRunning == 0 {
		b.kill()
		tb.Fatalf("no gateway is running:\n%s", output.String())
	}
	_ = r.SetReadDeadline(time.Time{})
	go func() { // This goroutine reads the container's console until the container ends.
		for buffer := make([]byte, 4096); ; {
			if _, err := r.Read(buffer); err != nil {
				r.Close()
				return
			}
		}
	}()
	return b
}

// kill ends the container and all its processes at once.
func (b *bootedInit) kill() {
	_ = b.cmd.Process.Kill()
	_ = b.cmd.Wait()
}

type repair struct {
	Done            bool
	Changed, Failed int
	Seconds         float64
	Stopped         string
}

// repair returns the init's progress in repairing file owners.
func (b *bootedInit) repair(tb testing.TB) *repair {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.v.hinit, "status", "--json")
	cmd.Env = []string{"HINIT_CONFIG=" + b.v.dir + "/hinit.yaml"}
	out, err := cmd.Output()
	if err != nil {
		tb.Fatalf("hinit status: %v", err)
	}
	var status struct{ Init struct{ Repair *repair } }
	if err := json.Unmarshal(out, &status); err != nil {
		tb.Fatal(err)
	}
	return status.Init.Repair
}
