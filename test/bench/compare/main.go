// Command compare measures hinit and other inits and supervisors that a user could choose, on the same machine in the same run.
// Build hinit first (make build), install the others with test/bench/install-peers, and run it as root:
//
//	go run ./test/bench/compare
//
// Each candidate is process 1 of a PID namespace of its own. A candidate that is not installed is left out, with a note.
// Candidates take turns, and medians count. In the same turns it measures lower bounds: a loop that only starts the services, and
// an empty program. It prints tables and, if asked, writes JSON, plots and the page of the documentation. It does not fail if
// hinit is slower.
//
// The main goroutine does everything. Each watch and each candidate has another one, which ends with it. The other programs that
// the measurements need are this binary in another role.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	runtime.LockOSThread() // The kernel kills the children when the thread that started them ends.
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "@") {
		if err := runRole(os.Args[1], os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, os.Args[1]+":", err)
			os.Exit(125)
		}
		return
	}
	b := bench{figures: newFigures()}
	dist := "dist/linux-" + runtime.GOARCH
	flag.StringVar(&b.hinit, "hinit", dist+"/hinit", "the hinit to measure")
	flag.StringVar(&b.before, "before", "", "an older hinit, to be measured beside it")
	flag.StringVar(&b.shim, "shim", dist+"/hinit-shim", "the exec shim to measure")
	flag.StringVar(&b.dir, "dir", "/var/tmp", "where service directories and logs are")
	flag.IntVar(&b.runs, "runs", 5, "runs of each; the median counts")
	flag.BoolVar(&b.quick, "quick", false, "small numbers, to see that everything works")
	flag.StringVar(&b.logJSON, "log", "", "what test/bench/log has written with -json, for M5")
	flag.StringVar(&b.outJSON, "json", "", "file for the figures")
	flag.StringVar(&b.docs, "write-docs", "", "directory of the reference, for benchmarks.md and its pictures")
	flag.StringVar(&b.from, "from", "", "take the figures of this JSON file instead of measuring")
	flag.BoolVar(&b.asS6, "s6", false, "hinit answers as s6 too, as it does in the image of the agent")
	flag.DurationVar(&b.within, "within", 7*time.Minute, "time for everything; when it runs short there are fewer rounds, at least two")
	flag.BoolVar(&b.verbose, "v", false, "say what is being done")
	only := flag.String("only", "", "these measures only, such as M1,M2")
	peers := flag.String("peers", "", "these candidates only, such as hinit,s6")
	flag.Parse()
	b.only, b.onlyPeers = list(*only), list(*peers)
	if err := b.run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func list(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

type bench struct {
	hinit, shim, dir string
	before           string // Path of an older hinit for comparison; "" for none.
	logJSON, outJSON string
	from, docs       string
	runs             int
	quick, verbose   bool
	asS6             bool
	within           time.Duration
	only, onlyPeers  []string

	self, sleep, work string
	empty, naive      string // Programs for comparison.
	sites             int
	peers             []peer
	notes             []string // Notes for readers of the figures, such as missing candidates.
	figures           figures
	running           running
}

// running holds the live candidates, so that a signal can end all of them.
type running struct {
	mu    sync.Mutex
	ended bool
	all   map[*os.Process]<-chan struct{} // Closed when the process has ended.
}

// add registers a candidate. It returns false if no more candidates may start.
func (r *running) add(p *os.Process, gone <-chan struct{}) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[*os.Process]<-chan struct{}{}
	}
	r.all[p] = gone
	return !r.ended
}

func (r *running) remove(p *os.Process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, p)
}

func (r *running) hasEnded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

// kill kills all candidates and prevents further starts.
func (r *running) kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	for p, gone := range r.all {
		_ = p.Kill() // The process may have ended.
		<-gone
	}
}

// wants reports whether the user has asked for one of these measures.
func (b *bench) wants(measures ...string) bool {
	return len(b.only) == 0 || slices.ContainsFunc(measures, func(m string) bool { return slices.Contains(b.only, m) })
}

func (b *bench) run() error {
	if b.from != "" {
		r, err := b.load(b.from)
		if err != nil {
			return err
		}
		b.print(os.Stdout)
		return b.writeDocs(b.docs, r)
	}
	if os.Geteuid() != 0 {
		return errors.New("a PID namespace needs root")
	}
	if err := b.prepare(); err != nil {
		return err
	}
	defer os.RemoveAll(b.work)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-stop
		b.running.kill()
		<-time.After(2 * time.Second) // By now, run has ended, unless it waits for something else.
		_ = os.RemoveAll(b.work)
		os.Exit(130) // The kernel kills all child processes together with this process.
	}()
	steps := []struct {
		measures []string
		do       func() error
	}{
		{[]string{"M1", "M2", "M6", "M10"}, b.measureBoots},
		{[]string{"M3"}, b.measureCrashes},
		{[]string{"M4", "M6"}, b.measureIdleAndCommands},
		{[]string{"M7"}, b.measureOrphans},
		{[]string{"M8"}, b.measureShims},
		{[]string{"M9"}, b.measureAdditions},
		{[]string{"M10"}, b.measureStopSignals},
		{[]string{"M11"}, b.measureContainers},
		{[]string{"M12"}, b.measureAgentCommands},
		{[]string{"M5"}, b.readLogPath},
	}
	for _, s := range steps {
		if !b.wants(s.measures...) {
			continue
		}
		begin := time.Now()
		if err := s.do(); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%s: %s\n", strings.Join(s.measures, " "), time.Since(begin).Round(100*time.Millisecond))
	}
	b.print(os.Stdout)
	r := b.gatherResult()
	return errors.Join(r.writeJSON(b.outJSON), b.writeDocs(b.docs, r))
}

// timeIsUp reports whether no time is left for another round of a part that began at begin. share
// is the part's share of the total time.
func (b *bench) timeIsUp(round int, begin time.Time, share float64, measures string) bool {
	const least = 2
	if round < least || time.Since(begin) < time.Duration(share*float64(b.within)) {
		return false
	}
	b.addRemark("%s: %d rounds only, the time was over", measures, round)
	return true
}

// progress prints the current measurement if -v is set.
func (b *bench) progress(format string, args ...any) {
	if b.verbose {
		fmt.Fprintf(os.Stderr, format+"\n", args...)
	}
}

func (b *bench) printError(text string) { fmt.Fprintln(os.Stderr, text) }

// addRemark adds a remark for readers of the figures. Each remark appears once.
func (b *bench) addRemark(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(b.notes, text) {
		b.notes = append(b.notes, text)
	}
}

func (b *bench) prepare() error {
	for _, path := range []*string{&b.hinit, &b.shim, &b.before} {
		if *path == "" {
			continue
		}
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		if _, err := os.Stat(absolute); err != nil {
			return fmt.Errorf("%w; build it with: make build", err)
		}
		*path = absolute
	}
	var err error
	if b.self, err = os.Executable(); err != nil {
		return err
	}
	if b.sleep, err = exec.LookPath("sleep"); err != nil {
		return err
	}
	if b.work, err = os.MkdirTemp(b.dir, "hb-"); err != nil {
		return err
	}
	if err := os.Chmod(b.work, 0o755); err != nil {
		return err
	}
	for path, pkg := range map[*string]string{&b.empty: "empty", &b.naive: "naive"} {
		*path = filepath.Join(b.work, pkg)
		build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", *path, "hinit/test/bench/"+pkg)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
	}
	unix.Sync() // Pages of a new program count as private and dirty until they are on the disk.
	var missing []string
	for _, p := range b.allPeers() {
		if len(b.onlyPeers) > 0 && !slices.Contains(b.onlyPeers, p.name()) && p.name() != loopName {
			continue
		}
		if missingProgram(p) != "" {
			missing = append(missing, p.name())
			continue
		}
		b.peers = append(b.peers, p)
	}
	if len(missing) > 0 {
		b.addRemark("not installed: %s", strings.Join(missing, ", "))
	}
	return nil
}

// candidatesOf returns the candidates of type T.
func candidatesOf[T peer](b *bench) []T {
	var all []T
	for _, p := range b.peers {
		if t, ok := p.(T); ok {
			all = append(all, t)
		}
	}
	return all
}
