// Command sandbox measures package sandbox against the docker command and the engine's API, in one run, on one container.
//
//	go run ./test/bench/sandbox [-runs 20] [-json FILE]
//
// It needs an engine, and Debian's packages bash-static and busybox-static, which it downloads once. Each figure is the median,
// with the fastest and the slowest. The package sandbox owns its goroutines.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"hinit/sandbox"
)

// secondProcessVar makes this program the second process, which measures how long another process
// needs to find the sandbox.
const secondProcessVar = "HINIT_BENCH_SANDBOX_AGAIN"

const (
	image = "hinit-bench-sandbox"
	bulk  = 100 << 20
)

// figure is one row of the table, in milliseconds or megabytes a second.
type figure struct {
	Name   string  `json:"name"`
	Unit   string  `json:"unit"`
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	Runs   int     `json:"runs"`
}

type report struct {
	Engine  string   `json:"engine"`
	Load    string   `json:"load"` // Contents of /proc/loadavg before and after.
	Figures []figure `json:"figures"`
	Verdict []string `json:"verdict"`
}

func main() {
	if os.Getenv(secondProcessVar) != "" {
		runSecondProcess()
		return
	}
	runs := flag.Int("runs", 20, "how often each thing is done; what is slow, a fifth as often")
	to := flag.String("json", "", "file for the figures")
	flag.Parse()
	b := &bench{runs: *runs}
	defer b.cleanUp()
	if err := b.all(); err != nil {
		b.cleanUp()
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	b.print(os.Stdout)
	if *to != "" {
		data, err := json.MarshalIndent(b.report, "", "  ")
		if err == nil {
			err = os.WriteFile(*to, append(data, '\n'), 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
	}
}

type bench struct {
	runs   int
	dir    string
	engine sandbox.Engine
	m      *sandbox.Manager
	report report
}

func (b *bench) cleanUp() {
	if b.m != nil {
		for _, task := range []string{"default", "cold"} {
			_ = b.remove(context.Background(), sandbox.Key{Task: task})
		}
	}
	_ = exec.Command("docker", "rmi", "-f", image).Run()
	_ = os.RemoveAll(b.dir)
}

func (b *bench) remove(ctx context.Context, key sandbox.Key) error {
	key.Profile = options(b.dir).Profile
	list, err := b.engine.List(ctx, sandbox.AgentLabels(key))
	for _, c := range list {
		err = errors.Join(err, b.engine.Remove(ctx, c.ID))
	}
	return err
}

func loadAverage() string {
	data, _ := os.ReadFile("/proc/loadavg")
	return strings.TrimSpace(string(data))
}

// options returns the options of both processes. They must be equal, so that both find the same
// sandbox.
func options(dir string) sandbox.Options {
	o := sandbox.DefaultOptions()
	o.Image, o.Network, o.DiskMB, o.Dir, o.Profile, o.SweepOrphans = image, "none", 0, dir, "bench", false
	o.HelperPath = filepath.Join(dir, "hinit-sandbox-helper")
	return o
}

func (b *bench) prepare() (err error) {
	if b.dir, err = os.MkdirTemp("", "hinit-bench-"); err != nil {
		return err
	}
	steps := [][]string{
		{"go", "build", "-trimpath", "-ldflags=-s -w", "-o", b.dir + "/hinit-sandbox-helper", "hinit/cmd/hinit-sandbox-helper"},
		{"docker/bash", runtime.GOARCH, b.dir + "/bash"},
		{"docker/busybox", runtime.GOARCH, b.dir + "/busybox"},
	}
	for _, step := range steps {
		cmd := exec.Command(step[0], step[1:]...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%q: %w: %s (run it in the project's directory)", step, err, out)
		}
	}
	text := "FROM scratch\nENV PATH=/bin\nCOPY bash busybox /bin/\nRUN [\"/bin/busybox\", \"--install\", \"-s\", \"/bin\"]\nRUN mkdir -p /tmp /root\n"
	if err := os.WriteFile(b.dir+"/Dockerfile", []byte(text), 0o644); err != nil {
		return err
	}
	cmd := exec.Command("docker", "build", "-q", "--network=none", "-t", image, b.dir)
	cmd.Env = append(os.Environ(), "DOCKER_BUILDKIT=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("docker build: %w: %s", err, out)
	}
	if b.engine, err = sandbox.Docker(""); err != nil {
		return err
	}
	info, err := b.engine.Info(context.Background())
	if err != nil {
		return err
	}
	b.report.Engine = fmt.Sprintf("%s %s, API %s", "docker", info.Version, info.API)
	b.m, err = sandbox.NewManager(b.engine, options(b.dir))
	return err
}

func (b *bench) all() error {
	if err := b.prepare(); err != nil {
		return err
	}
	b.report.Load = loadAverage()
	ctx := context.Background()
	s, err := b.m.Open(ctx, sandbox.Key{})
	if err != nil {
		return err
	}
	if d, err := s.Describe(ctx); err != nil || d.Exec != sandbox.ExecDirect {
		return fmt.Errorf("commands run %q because of %q: %w", d.Exec, d.Reason, err)
	}
	argv := sandbox.Request{Argv: []string{"true"}}
	line := sandbox.Request{Command: "true"}
	run := func(req sandbox.Request) func() error {
		return func() error { _, err := s.Exec(ctx, req); return err }
	}
	cli := func(args ...string) func() error {
		return func() error { return exec.Command("docker", append([]string{"exec", s.ID()}, args...)...).Run() }
	}
	api := func(id string, argv ...string) error {
		a, err := b.engine.Exec(ctx, id, sandbox.ExecSpec{Argv: argv})
		if err != nil {
			return err
		}
		defer a.Close()
		_, err = io.Copy(io.Discard, a)
		return err // A real client also asks how the command ended.
	}
	few := max(3, b.runs/5)
	for _, x := range []struct {
		name string
		runs int
		do   func() error
	}{
		{"true: docker exec", b.runs, cli("true")},
		{"true: engine's API", b.runs, func() error { return api(s.ID(), "true") }},
		{"true: package, as it is", 10 * b.runs, run(argv)},
		{"true: package, by the shell", 10 * b.runs, run(line)},
		{"attach again: whole process", b.runs, b.attach},
	} {
		if err := b.time(x.name, x.runs, x.do); err != nil {
			return fmt.Errorf("%s: %w", x.name, err)
		}
	}
	if err := b.measureDockerCommand(ctx, s.ID()); err != nil {
		return err
	}
	if err := b.attachInside(few * 2); err != nil {
		return err
	}
	if err := b.measureColdStart(ctx, few, api); err != nil {
		return err
	}
	// dd writes large pieces. A writer of small pieces would be the bottleneck.
	writer := []string{"dd", "if=/dev/zero", "bs=1M", fmt.Sprint("count=", bulk>>20)}
	if err := b.rateInTurns(max(5, b.runs/2), []variant{
		{"100 MB of output: docker exec", cli(writer...)},
		{"100 MB of output: package", run(sandbox.Request{Argv: writer, Stdout: io.Discard})},
		{"100 MB of output: no container, a pipe to this program", func() error { return runWithPipe(writer) }},
	}); err != nil {
		return err
	}
	b.report.Load += " → " + loadAverage()
	b.checkTargets()
	return nil
}

func (b *bench) add(name, unit string, values []float64) {
	slices.Sort(values)
	b.report.Figures = append(b.report.Figures, figure{name, unit, values[len(values)/2], values[0], values[len(values)-1], len(values)})
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func (b *bench) time(name string, runs int, do func() error) error {
	var values []float64
	for i := range runs + 1 {
		begin := time.Now()
		if err := do(); err != nil {
			return err
		}
		if i > 0 {
			values = append(values, milliseconds(time.Since(begin)))
		}
	}
	b.add(name, "ms", values)
	return nil
}

// variant is one of several compared ways to do the same thing.
type variant struct {
	name string
	do   func() error
}

// timeInTurns measures the ways alternately, so that load affects all alike.
func (b *bench) timeInTurns(runs int, ways []variant) error {
	return b.inTurns(runs, "ms", ways, milliseconds)
}

// rateInTurns is timeInTurns for ways that output 100 MB each, in megabytes a second.
func (b *bench) rateInTurns(runs int, ways []variant) error {
	return b.inTurns(runs, "MB/s", ways, func(d time.Duration) float64 { return bulk / 1e6 / d.Seconds() })
}

func (b *bench) inTurns(runs int, unit string, ways []variant, figure func(time.Duration) float64) error {
	values := make([][]float64, len(ways))
	for range runs {
		for _, i := range rand.Perm(len(ways)) {
			begin := time.Now()
			if err := ways[i].do(); err != nil {
				return fmt.Errorf("%s: %w", ways[i].name, err)
			}
			values[i] = append(values[i], figure(time.Since(begin)))
		}
	}
	for i, way := range ways {
		b.add(way.name, unit, values[i])
	}
	return nil
}

// runWithPipe runs a command and reads its output from a pipe. It is the upper bound for two processes.
func runWithPipe(argv []string) error {
	cmd := exec.Command(argv[0], argv[1:]...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	for {
		if _, err := out.Read(buf); err != nil {
			return cmd.Wait()
		}
	}
}

// secondProcess returns a command that starts this program as the second process.
func (b *bench) secondProcess() *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), secondProcessVar+"="+b.dir)
	return cmd
}

func (b *bench) attach() error { return b.secondProcess().Run() }

func (b *bench) attachInside(runs int) error {
	var values []float64
	for range runs {
		out, err := b.secondProcess().Output()
		if err != nil {
			return err
		}
		var ms float64
		if _, err := fmt.Sscan(string(out), &ms); err != nil {
			return err
		}
		values = append(values, ms)
	}
	b.add("attach again: manager, sandbox, first command", "ms", values)
	return nil
}

// runSecondProcess is the second process: it finds the sandbox and runs one command in it.
func runSecondProcess() {
	begin := time.Now()
	err := func() error {
		e, err := sandbox.Docker("")
		if err != nil {
			return err
		}
		m, err := sandbox.NewManager(e, options(os.Getenv(secondProcessVar)))
		if err != nil {
			return err
		}
		s, err := m.Open(context.Background(), sandbox.Key{})
		if err != nil {
			return err
		}
		_, err = s.Exec(context.Background(), sandbox.Request{Argv: []string{"true"}})
		return err
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	fmt.Println(milliseconds(time.Since(begin)))
}

// measureColdStart compares the first command in a new container through the engine's API and
// through the package, alternately.
func (b *bench) measureColdStart(ctx context.Context, runs int, api func(string, ...string) error) error {
	var own, ours, over []float64
	key := sandbox.Key{Task: "cold"}
	for range runs {
		spec, err := b.m.ContainerSpec(ctx, key)
		if err != nil {
			return err
		}
		begin := time.Now()
		id, err := b.engine.Create(ctx, spec)
		if err == nil {
			if err = b.engine.Start(ctx, id); err == nil {
				err = api(id, "true")
			}
		}
		engine := milliseconds(time.Since(begin))
		if err != nil {
			return err
		}
		if err := b.remove(ctx, key); err != nil {
			return err
		}
		begin = time.Now()
		s, err := b.m.Open(ctx, key)
		if err != nil {
			return err
		}
		if _, err := s.Exec(ctx, sandbox.Request{Argv: []string{"true"}}); err != nil {
			return err
		}
		pkg := milliseconds(time.Since(begin))
		if err := b.remove(ctx, key); err != nil {
			return err
		}
		own, ours, over = append(own, engine), append(ours, pkg), append(over, pkg-engine)
	}
	b.add("first command, cold: engine's create, start, exec", "ms", own)
	b.add("first command, cold: package", "ms", ours)
	b.add("first command, cold: what the package adds", "ms", over)
	return nil
}

func (b *bench) median(name string) float64 {
	for _, f := range b.report.Figures {
		if f.Name == name {
			return f.Median
		}
	}
	return 0
}

// checkTargets reports for each target whether the figures meet it.
func (b *bench) checkTargets() {
	say := func(what string, got, limit float64) {
		word := "met"
		if got > limit {
			word = "NOT met"
		}
		b.report.Verdict = append(b.report.Verdict, fmt.Sprintf("%s: %.2f ms, wanted ≤ %g ms: %s", what, got, limit, word))
	}
	say("true in a warm sandbox, by the shell", b.median("true: package, by the shell"), 3)
	say("true by the docker personality without the service", b.median(personalityRow), 8)
	say("attach again from another process", b.median("attach again: manager, sandbox, first command"), 15)
	say("first command on a cold start, besides the engine's time", b.median("first command, cold: what the package adds"), 30)
}

func (b *bench) print(w io.Writer) {
	fmt.Fprintf(w, "engine: %s\nload: %s\n\n", b.report.Engine, b.report.Load)
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "what\tmedian\tfastest\tslowest\truns")
	for _, f := range b.report.Figures {
		fmt.Fprintf(t, "%s\t%.2f %s\t%.2f\t%.2f\t%d\n", f.Name, f.Median, f.Unit, f.Min, f.Max, f.Runs)
	}
	_ = t.Flush()
	fmt.Fprintln(w)
	fmt.Fprintln(w, strings.Join(b.report.Verdict, "\n"))
}
