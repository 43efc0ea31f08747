// Command log measures the log path: the speed at which a logger writes the output of a service to a file. The same writer goes
// through hinit, s6-log, svlogd and supervisord, in one run on one machine. hinit also runs with 500 services of which one
// floods. Build hinit first (make build), install the others with test/bench/install-peers, and run it as root:
//
//	go run ./test/bench/log -hinit dist/linux-amd64/hinit
//
// It prints a table and, with -json, writes the same figures to a file. Every logger is a process of its own, as in a container:
// hinit is PID 1 of a PID namespace and the writer a service of it. One goroutine does everything. The other programs that the
// measurement needs (writer, reader of the console, bare copy) are this binary too, see [roleVar].
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// roleVar is the environment variable that makes this binary one of its other programs.
const roleVar = "BENCH_LOG_VERB"

func main() {
	if v := os.Getenv(roleVar); v != "" {
		if err := runRole(v, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, v+":", err)
			os.Exit(1)
		}
		return
	}
	b := bench{}
	flag.StringVar(&b.hinit, "hinit", "dist/linux-"+runtime.GOARCH+"/hinit", "the hinit to measure")
	flag.IntVar(&b.lines, "lines", 2_000_000, "lines a run, of 100 bytes each")
	flag.IntVar(&b.rounds, "rounds", 5, "runs of each, of which the median counts; 0 for the second part only")
	flag.StringVar(&b.dir, "dir", "/var/tmp", "where log files are written")
	flag.IntVar(&b.services, "services", 500, "services of the second part, 0 for none")
	kind := flag.String("writer", "", "one kind of writer only: "+strconv.Quote(blocks)+" or "+strconv.Quote(oneLinePerWrite))
	only := flag.String("only", "", "those loggers only whose names have this in them, and no second part")
	out := flag.String("json", "", "file for the figures")
	flag.Parse()
	b.kinds = []string{blocks, oneLinePerWrite}
	if *kind != "" {
		b.kinds = []string{*kind}
	}
	if err := b.run(*only, *out); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type bench struct {
	hinit, self, dir, work  string
	lines, rounds, services int
	kinds                   []string
	runs                    int // Number of runs so far.
}

// sample is the result of one run.
type sample struct {
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpu_seconds"` // Processor time of the logger, in seconds.
	Shown   float64 `json:"shown"`       // Share of the lines that reached the console; -1 without a console.
}

// row holds the results of one logger with one kind of writer.
type row struct {
	Logger  string   `json:"logger"`
	Writer  string   `json:"writer"`
	MBs     float64  `json:"mb_per_second"`
	CPUGB   float64  `json:"cpu_seconds_per_gb"`
	Shown   float64  `json:"shown"`
	Load    span     `json:"load"`
	Samples []sample `json:"samples"`
}

// span is the range of the one-minute load average during a run (proc_loadavg(5)).
type span struct {
	From float64 `json:"from"`
	To   float64 `json:"to"`
}

func (s *span) widen(v float64) {
	if s.To == 0 {
		s.From = v
	}
	s.From, s.To = min(s.From, v), max(s.To, v)
}

func loadAverage() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	v, _ := strconv.ParseFloat(strings.Fields(string(text))[0], 64)
	return v
}

type report struct {
	Processors int                  `json:"processors"`
	Lines      int                  `json:"lines"`
	Rows       []row                `json:"rows"`
	Many       []manyServicesResult `json:"many,omitempty"`
}

func (b *bench) run(only, out string) error {
	if os.Geteuid() != 0 {
		return errors.New("a PID namespace needs root")
	}
	var err error
	if b.hinit, err = filepath.Abs(b.hinit); err != nil {
		return err
	}
	if _, err := os.Stat(b.hinit); err != nil {
		return fmt.Errorf("%w; build it with: make build", err)
	}
	if b.self, err = os.Executable(); err != nil {
		return err
	}
	if b.work, err = os.MkdirTemp(b.dir, "bench-log-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.work)
	if err := os.Chmod(b.work, 0o755); err != nil {
		return err
	}
	if b.self, err = b.copySelf(); err != nil {
		return err
	}
	r := report{Processors: runtime.NumCPU(), Lines: b.lines}
	loggers := b.present(only)
	for _, kind := range b.kinds {
		if b.rounds <= 0 {
			break
		}
		rows := make([]row, len(loggers))
		for range b.rounds { // The loggers alternate, so that slow moments of the machine affect all alike.
			for _, i := range rand.Perm(len(loggers)) {
				l := loggers[i]
				s, err := b.measure(l, kind)
				if err != nil {
					return fmt.Errorf("%s: %w", l.name, err)
				}
				rows[i].Load.widen(loadAverage())
				rows[i].Samples = append(rows[i].Samples, s)
			}
		}
		gb := float64(b.lines) * lineSize / 1e9
		for i := range rows {
			w := &rows[i]
			w.Logger, w.Writer = loggers[i].name, kind
			w.MBs = gb * 1000 / median(w.Samples, func(s sample) float64 { return s.Seconds })
			w.CPUGB = median(w.Samples, func(s sample) float64 { return s.CPU }) / gb
			w.Shown = median(w.Samples, func(s sample) float64 { return s.Shown })
		}
		r.Rows = append(r.Rows, rows...)
		table(kind, b, rows)
	}
	if b.services > 0 && only == "" {
		if r.Many, err = b.measureMany(); err != nil {
			return err
		}
	}
	if out == "" {
		return nil
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(out, append(text, '\n'), 0o644)
}

func median(samples []sample, of func(sample) float64) float64 {
	values := make([]float64, len(samples))
	for i, s := range samples {
		values[i] = of(s)
	}
	slices.Sort(values)
	middle := len(values) / 2
	if len(values)%2 == 0 {
		return (values[middle-1] + values[middle]) / 2
	}
	return values[middle]
}

// reference is the logger to which all ratios refer.
const reference = "s6-log, file + console"

func table(kind string, b *bench, rows []row) {
	fmt.Printf("\n%d lines of %d bytes, %s; medians of %d; %s\n\n", b.lines, lineSize, kind, b.rounds, time.Now().Format(time.DateOnly))
	ref := slices.IndexFunc(rows, func(r row) bool { return r.Logger == reference })
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "logger\tMB/s\t× s6-log\tCPU s/GB\t÷ s6-log\tconsole got\tload\t")
	for _, r := range rows {
		speed, cost, shown := "-", "-", "-"
		if ref >= 0 {
			speed = fmt.Sprintf("%.1f", r.MBs/rows[ref].MBs)
			cost = fmt.Sprintf("%.2f", r.CPUGB/rows[ref].CPUGB)
		}
		if r.Shown >= 0 {
			shown = fmt.Sprintf("%.1f %%", r.Shown*100)
		}
		fmt.Fprintf(w, "%s\t%.0f\t%s\t%.2f\t%s\t%s\t%.1f to %.1f\t\n", r.Logger, r.MBs, speed, r.CPUGB, cost, shown, r.Load.From, r.Load.To)
	}
	_ = w.Flush()
}
