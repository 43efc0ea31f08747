package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// writeDocs writes the page of the reference and its pictures; no directory is no page.
func (b *bench) writeDocs(dir string, r result) error {
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Join(dir, "img"), 0o755); err != nil {
		return err
	}
	sheets := b.sheets()
	for _, s := range sheets {
		if p, ok := s.picture(); ok {
			if err := os.WriteFile(filepath.Join(dir, imageOf(s.id)), []byte(p.svg()), 0o644); err != nil {
				return err
			}
		}
	}
	return os.WriteFile(filepath.Join(dir, "benchmarks.md"), []byte(b.page(sheets, r)), 0o644)
}

func imageOf(measure string) string {
	return "img/bench-" + strings.ReplaceAll(strings.ToLower(measure), " ", "-") + ".svg"
}

// picture is the plot of a measure over the number of services.
func (s sheet) picture() (plot, bool) {
	p := plot{title: s.id + ": " + s.title, unit: s.unit}
	for _, r := range s.rows {
		l := line{name: r.name, bold: r.name == hinitName}
		for k, c := range r.cells {
			if n := asNumber(s.at[k]); c.known && n > 0 {
				l.points = append(l.points, point{n, c.value})
			}
		}
		if len(l.points) > 0 {
			p.lines = append(p.lines, l)
		}
	}
	return p, s.plot && len(s.at) > 1 && len(p.lines) > 0
}

const pageHead = `# Benchmarks

<!-- Written by "make bench" (test/bench/compare). Do not edit. -->

The costs of hinit, beside its alternatives, all measured in one run on one machine. The figures move with the machine, the
ratios less. Run it yourself, as root:

` + "```sh" + `
make bench-peers   # install the others, from Debian's packages
make bench         # about twelve minutes; "make bench-quick" is a minute, with small numbers
` + "```" + `

`

const pageHow = `## How it is measured

- Every candidate is process 1 of a PID namespace of its own, with a /proc of its own. Candidates take turns in every round, and
  medians count. A ratio is the median of the ratios of the rounds. Who comes first in a round is left to chance.
- Every service is a copy of ` + "`sleep infinity`" + `. With hinit each is the gateway of a profile, as user 10000, with log file and
  console; with s6 and runit each has a run script of sh and a logger of its own (s6-log, svlogd -tt); all are rotated at 1 MB,
  ten old ones are kept. supervisord has no time stamps.
- A service counts as running when the kernel executes its program (fanotify), so that nothing has to be polled or changed.
- The bare loop is the floor under a boot and a stop: one thread of a Go program that forks (vfork, setsid, /dev/null three times) and
  execs, and nothing else: no pipes, no change of user, no logs; at a TERM it passes it on and waits.
- The volume that hinit boots from belongs to the agent's user. In its first boot a candidate makes its directories, and hinit syncs them;
  the second boot is from what the first has left, as every start of a container but the first is.
- Memory is PSS of the supervisor and all loggers, without the services. At rest all candidates are there at the same time. hinit drops
  the pages of its program file from its page tables when it comes to rest, and once more 2.5 s later, after which its memory is taken;
  what it needs again is mapped again, clean, from the page cache.
- Every candidate takes part in as many rounds as every other; only hinit and the bare loop go beyond 500 services.
- M3, restart: with the shortest delay. hinit 1 µs; s6 starts a service again at once that has said that it is ready, which it does;
  runit and supervisord have no delay to set. M3, as delivered: nothing is configured, and the service has run for a minute.
- The directory that runsvdir scans is an hour old: runsvdir waits for a second beside one that has just changed.
- Orphans come from a process that has entered the namespace, as with ` + "`docker exec`" + `: a shell forks a child, which forks one
  more and ends, 20,000 times.
- A new profile is down until someone starts it, so the last step of M9 is a call of the API. Other candidates have their
  definition ready in a staging directory before the clock starts.
- runsvdir is told to stop with HUP: at a TERM it leaves everything alone. It is no init: where it is process 1 it does not wait for
  orphans, and when it ends the kernel kills what is left.
- Code: ` + "[test/bench/compare](../../test/bench/compare)" + `; a candidate is one small file there. pebble, nitro and process-compose
  are used when they are on PATH.

`

// elsewhere is what was measured of those that have no package, by others than this run.
const elsewhere = `## Measured elsewhere

pebble, process-compose and nitro have no Debian package, so a run has them only where they are on PATH. These figures are from a run
of the maintainer's on two EPYC cores in autumn 2026, with all of them built from source. They are not from the run of this page, so
compare them with hinit's of that run only.

| Measure | hinit then | the best of the three |
|---|---|---|
| boot, 500 services, ms | 958 | pebble 400 (it writes no log files), process-compose 950 |
| boot, 100 services / 1 service, ms | 138 / 11 | pebble 121, nitro 4.7 |
| kill -9 to the new process, as delivered, ms | 998 | nitro 2.3 |
| stop of 100 / 10 / 1 services, ms | 29 / 8 / 7 | pebble 17, nitro 3.9, 1.7 |
| memory at rest, 10 services, MB | 4.4 | nitro 2.6 |

`

func (b *bench) page(sheets []sheet, r result) string {
	var w strings.Builder
	w.WriteString(pageHead)
	m := r.Machine
	fmt.Fprintf(&w, "%s, commit %s, %d × %s, %d MB, Linux %s, %s, %s. All samples are in [benchmarks.json](benchmarks.json).\n",
		r.Date, m.Commit, m.Processors, m.Processor, m.MemoryMB, m.Kernel, m.System, m.Go)
	for _, name := range slices.Sorted(maps.Keys(r.Versions)) {
		fmt.Fprintf(&w, "\n- %s: %s", name, r.Versions[name])
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&w, "\n- %s.", note)
	}
	w.WriteString("\n\n## Targets\n\n| Measure | | Target | hinit | |\n|---|---|---|---|---|\n")
	var open []string
	for _, v := range b.verdicts() {
		fmt.Fprintf(&w, "| %s | %s | %s | %s | %s |\n", v.measure, v.column(), v.promise(), v.shown(), v.word())
		if id := strings.Fields(v.measure)[0]; v.known && !v.met && !slices.Contains(open, id) {
			open = append(open, id)
		}
	}
	for _, g := range b.growths() {
		fmt.Fprintf(&w, "| %s | %d to %d services | grows at most as N | N^%.2f | %s |\n", g.measure, g.from, g.to, g.exponent, word(g.exponent <= mostGrowth))
	}
	if len(open) > 0 {
		w.WriteString("\n### The gaps\n\n")
		for _, id := range open {
			fmt.Fprintf(&w, "- **%s**: %s\n", id, b.explain(id))
		}
	}
	w.WriteString("\n" + elsewhere + pageHow + "## All figures\n\nIn brackets: times hinit's. Load is the one-minute average of the " +
		"machine while the samples were taken, which taking them raises.\n")
	for _, s := range sheets {
		unit := ""
		if s.unit != "" {
			unit = ", " + s.unit
		}
		fmt.Fprintf(&w, "\n### %s: %s%s\n\n%s| |%s\n|---|%s\n", s.id, s.title, unit, s.load, columns(s.at), strings.Repeat("--:|", len(s.at)))
		for _, r := range s.rows {
			fmt.Fprintf(&w, "| %s |", r.name)
			for _, c := range r.cells {
				fmt.Fprintf(&w, " %s |", c.text())
			}
			w.WriteString("\n")
		}
		if _, ok := s.picture(); ok {
			fmt.Fprintf(&w, "\n![%s](%s)\n", s.title, imageOf(s.id))
		}
	}
	return w.String()
}

// column is a column's name in words.
func (v verdict) column() string {
	switch _, err := strconv.Atoi(v.at); {
	case v.at == "1":
		return "1 service"
	case err == nil:
		return v.at + " services"
	}
	return v.at
}

func columns(at []string) string {
	var w strings.Builder
	for _, a := range at {
		w.WriteString(" " + a + " |")
	}
	return w.String()
}
