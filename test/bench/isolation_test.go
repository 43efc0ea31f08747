package bench

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"hinit/internal/isolation"
	"hinit/internal/testkit"
)

const (
	isolatedProfiles = 500
	isolatedStarts   = 300 // Number of starts in each mode.
	// Idle time before the memory of PID 1 is read; PID 1 gives pages back 2.5 s after the boot.
	settleTime = 4 * time.Second
)

// isolationModes are measured in turns. The others are compared with the first one.
var isolationModes = []string{"none", "files", "user"}

// BenchmarkIsolatedStart measures the time that hinit-isolate adds to the start of a command.
func BenchmarkIsolatedStart(b *testing.B) {
	dir := isolationDir(b, "hinit-isolate")
	home := filepath.Join(dir, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		b.Fatal(err)
	}
	command, rules := []string{"/bin/true"}, filepath.Join(dir, "rules")
	save := testkit.IsolationPlan{Hide: []string{dir}, Save: rules}.Argv(filepath.Join(dir, isolation.Program), command)
	if out, err := exec.Command(save[0], save[1:]...).CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	for b.Loop() {
		took := make(map[string][]time.Duration)
		for range isolatedStarts {
			for _, mode := range isolationModes {
				uid, argv := uint32(agentID), command
				if mode == "user" {
					uid++
				}
				if mode != "none" {
					plan := testkit.IsolationPlan{Name: fmt.Sprintf("ib-%s", mode), Home: home, Hide: []string{dir}, Rules: rules}
					argv = plan.Argv(filepath.Join(dir, isolation.Program), command)
				}
				cmd := exec.Command(argv[0], argv[1:]...)
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
				begin := time.Now()
				if out, err := cmd.CombinedOutput(); err != nil {
					b.Fatalf("%v\n%s", err, out)
				}
				took[mode] = append(took[mode], time.Since(begin))
			}
		}
		none := median(took["none"])
		for _, mode := range isolationModes {
			b.ReportMetric(float64(median(took[mode]).Microseconds())/1000, "ms/"+mode)
			if mode != "none" {
				b.ReportMetric(float64((median(took[mode])-none).Microseconds())/1000, "ms-more/"+mode)
			}
		}
		b.ReportMetric(0, "ns/op")
	}
}

// BenchmarkIsolatedBoot measures the time from the start of the init until 500 gateways run, and
// the anonymous memory of PID 1 at rest.
func BenchmarkIsolatedBoot(b *testing.B) {
	bin := isolationDir(b, "hinit", "hinit-isolate")
	image, err := os.MkdirTemp("/opt", "hinit-bench-") //nolint:usetesting // an isolated gateway executes nothing in /tmp and /var/tmp
	if err == nil {
		b.Cleanup(func() { _ = os.RemoveAll(image) })
		err = errors.Join(os.Chmod(image, 0o755), testkit.Build(image, "example-agent"), os.Chmod(filepath.Join(image, "example-agent"), 0o755)) //nolint:gosec // the isolated gateway's user has to enter this directory
	}
	if err != nil {
		b.Fatal(err)
	}
	for _, g := range []gateway{
		{"agent", "binary: " + filepath.Join(image, "example-agent"), " is running", 3},
		{"sleep", `binary: /bin/sleep, gateway: [/bin/sleep, "100000"], ready: up`, ": up (pid ", 9},
	} {
		b.Run(g.name, func(b *testing.B) { g.benchmarkBoot(b, bin) })
	}
}

// gateway describes the process of each profile: its name, its agent in hinit.yaml, and the text
// with which it reports that it runs.
type gateway struct {
	name, agent, runs string
	boots             int // Number of boots of each mode.
}

func (g gateway) benchmarkBoot(b *testing.B, bin string) {
	runtime.LockOSThread() // A container ends when the thread that started it ends.
	defer runtime.UnlockOSThread()
	dir := filepath.Join(bin, g.name)
	for _, mode := range isolationModes {
		isolationVolume(b, filepath.Join(dir, mode), mode, g.agent)
		g.boot(b, bin, mode) // The first boot in this mode also changes the owners of all homes.
	}
	for b.Loop() {
		// The heap of equal boots varies by 1 KiB a profile, so take the median of differences between
		// consecutive boots.
		took, more := make(map[string][]time.Duration), make(map[string][]int)
		for range g.boots {
			none := 0
			for _, mode := range isolationModes {
				until, kib := g.boot(b, bin, mode)
				took[mode] = append(took[mode], until)
				if mode == "none" {
					none = kib
				}
				more[mode] = append(more[mode], kib-none)
			}
		}
		for _, mode := range isolationModes {
			b.ReportMetric(median(took[mode]).Seconds(), "s/"+mode)
			if mode != "none" {
				b.ReportMetric(float64(median(took[mode]))/float64(median(took["none"])), "ratio/"+mode)
				b.ReportMetric(float64(median(more[mode]))/isolatedProfiles, "KiB-more-a-profile/"+mode)
			}
		}
		b.ReportMetric(0, "ns/op")
		b.Logf("%d profiles running after %v, with so many KiB more than none: %v", isolatedProfiles, took, more)
	}
}

// isolationDir returns a directory with programs that every user may enter.
func isolationDir(b *testing.B, programs ...string) string {
	b.Helper()
	testkit.NeedRoot(b)
	if isolation.LandlockABI() == 0 {
		testkit.SkipOrFail(b, "the kernel has no Landlock")
	}
	dir, err := os.MkdirTemp("/var/tmp", "hinit-bench-") //nolint:usetesting // the directory is on a disk, as volumes are, and the agent can enter it
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		left, _ := filepath.Glob("/tmp/hinit-ib-*") // Remove temporary directories of the profiles.
		for _, path := range append(left, dir) {
			_ = os.RemoveAll(path)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		b.Fatal(err)
	}
	if err := testkit.Build(dir, programs...); err != nil {
		b.Fatal(err)
	}
	return dir
}

// isolationVolume creates the profiles of one mode, all marked as running.
func isolationVolume(b *testing.B, dir, mode, agent string) {
	b.Helper()
	files := map[string]string{filepath.Join(dir, "hinit.yaml"): fmt.Sprintf(`home: %[1]s/home
agent: {user: "%[2]d:%[2]d", %[4]s}
isolation: {mode: %[3]s}
control: {socket: %[1]s/control.sock}
boot: {hooks: []}
`, dir, agentID, mode, agent)}
	for i := range isolatedProfiles {
		home := filepath.Join(dir, "home", "profiles", fmt.Sprintf("ib-%03d", i))
		files[filepath.Join(home, "SOUL.md")] = "A profile.\n"
		files[filepath.Join(home, "gateway_state.json")] = `{"desired_state":"running"}` + "\n"
	}
	for path, text := range files {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil { //nolint:gosec // the mode in most images
			b.Fatal(err)
		}
	}
}

// boot boots the volume of a mode, measures, and ends the container. until is the time until all
// gateways ran, and kib the memory of PID 1.
func (g gateway) boot(b *testing.B, bin, mode string) (until time.Duration, kib int) {
	b.Helper()
	volume := filepath.Join(bin, g.name, mode)
	cmd := container(filepath.Join(bin, "hinit"), []string{"HINIT_CONFIG=" + filepath.Join(volume, "hinit.yaml"), "HERMES_HOME=" + filepath.Join(volume, "home")}, "init", "sleep", "100000")
	r, w, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	cmd.Stdout, cmd.Stderr = w, w
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	w.Close()
	defer func() { // All processes in the namespace end with process 1.
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	if err := r.SetReadDeadline(begin.Add(4 * patience)); err != nil {
		b.Fatal(err)
	}
	var output strings.Builder
	running := 0
	for lines := bufio.NewScanner(io.TeeReader(r, &output)); running < isolatedProfiles && lines.Scan(); {
		if strings.Contains(lines.Text(), "ib-") && strings.Contains(lines.Text(), g.runs) {
			running++
		}
	}
	until = time.Since(begin)
	if running < isolatedProfiles {
		text := output.String()
		b.Fatalf("%s: %d of %d gateways are running:\n%s", mode, running, isolatedProfiles, text[:min(len(text), 4000)])
	}
	time.Sleep(settleTime)
	return until, anonymous(b, cmd.Process.Pid)
}
