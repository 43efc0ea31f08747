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
		if p, ok := s.picture(); ok && !slices.Contains(withoutTable, s.id) {
			if err := os.WriteFile(filepath.Join(dir, imageOf(s.id)), []byte(p.svg()), 0o644); err != nil {
				return err
			}
		}
	}
	return os.WriteFile(filepath.Join(dir, "benchmarks.md"), []byte(b.page(sheets, r)), 0o644)
}

// withoutTable are the measures without a table on the page, because their figures follow from others.
var withoutTable = []string{"M1 tables", "M1 processes", "M1 used", "M1 private", "M2 again", "M4 cpu", "M5 lines", "M6 all", "M10 check", "M12"}

func imageOf(measure string) string {
	return "img/bench-" + strings.ReplaceAll(strings.ToLower(measure), " ", "-") + ".svg"
}

// picture is the plot of a measure over the number of services.
func (s sheet) picture() (plot, bool) {
	p := plot{title: s.title, unit: s.unit}
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

Measured in one run on one machine. Figures depend on the machine, ratios less so. To run it, as root:

` + "```sh" + `
make bench-peers   # install the others, from Debian's packages
make bench         # 8 minutes; "make bench-quick" is a minute, with small numbers
` + "```" + `

`

const pageHow = `## How it is measured

- Every candidate is process 1 of its own PID namespace. Candidates take turns in every round, in random order; the page shows medians.
- Every service is a copy of ` + "`sleep infinity`" + `. With hinit each is a profile's gateway, as user 10000, with log file and console. With s6
  and runit each has a run script and a logger (s6-log, svlogd -tt). Logs rotate at 1 MB; ten old files are kept.
- A service counts as running when the kernel executes its program (fanotify): nothing polls.
- The bare loop is the floor: one thread of a Go program that only forks, executes, passes the TERM on and waits. It has no pipes, users or logs.
- Memory is PSS of supervisor and loggers, without the services, 2.5 s after the last change.
- After a crash, restart: the shortest delay that can be set. As delivered: nothing is set, and the service has run for a minute.
- runsvdir gets HUP to stop, because TERM leaves its services alone.
- Code: [test/bench/compare](../../test/bench/compare).

`

// elsewhere is what was measured of those that have no package, by others than this run.
const elsewhere = `## Measured elsewhere

pebble, process-compose and nitro have no Debian package; a run uses them when they are on PATH. These figures are from another run, in
autumn 2026. Compare them only with the column beside them.

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
		fmt.Fprintf(&w, "\n- %s", r.Versions[name])
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&w, "\n- %s.", readable(note))
	}
	w.WriteString("\n\n## Targets that are not met\n\n| Measure | hinit (target) |\n|---|---|")
	var open []string
	met, last := 0, ""
	for _, v := range b.verdicts() {
		if v.known && v.met {
			met++
			continue
		}
		separator := "; "
		if v.measure != last {
			separator, last = ending(last)+"\n| "+readable(v.measure)+" | ", v.measure
		}
		fmt.Fprintf(&w, "%s%s: %s (%s)", separator, v.column(), v.shown(), strings.NewReplacer("at most ", "≤", "at least ", "≥").Replace(v.promise()))
		if id := strings.Fields(v.measure)[0]; v.known && !slices.Contains(open, id) {
			open = append(open, id)
		}
	}
	for _, g := range b.growths() {
		if g.exponent <= mostGrowth {
			met++
			continue
		}
		fmt.Fprintf(&w, "%s\n| %s | %d to %d services: N^%.2f (grows at most as N)", ending(last), readable(g.measure), g.from, g.to, g.exponent)
		last = g.measure
	}
	fmt.Fprintf(&w, "%s\n\n%d other targets are met.\n", ending(last), met)
	if len(open) > 0 {
		w.WriteString("\n### The gaps\n\n")
		for _, id := range open {
			fmt.Fprintf(&w, "- **%s**: %s\n", readable(id), b.explain(id))
		}
	}
	w.WriteString("\n" + elsewhere + pageHow + "## Figures\n")
	for _, s := range sheets {
		if slices.Contains(withoutTable, s.id) {
			continue
		}
		unit := ""
		if s.unit != "" {
			unit = ", " + s.unit
		}
		fmt.Fprintf(&w, "\n### %s%s%s\n\n| |%s\n|---|%s\n", strings.ToUpper(s.title[:1]), s.title[1:], unit, columns(s.at), strings.Repeat("--:|", len(s.at)))
		for _, r := range s.rows {
			fmt.Fprintf(&w, "| %s |", r.name)
			for _, c := range r.cells {
				fmt.Fprintf(&w, " %s |", c.figure())
			}
			w.WriteString("\n")
		}
		if _, ok := s.picture(); ok {
			fmt.Fprintf(&w, "\n![%s](%s)\n", s.title, imageOf(s.id))
		}
	}
	return w.String()
}

// plainNames are the names of measures on the page, longer codes before the ones that they begin with.
var plainNames = strings.NewReplacer(
	"M10 check", "end, told", "M10", "end", "M11", "docker run", "M12", "agent's commands", "M1 used", "memory after five statuses",
	"M1 private", "private memory", "M1", "memory", "M2 again", "second boot", "M2", "first boot", "M3", "crash", "M4 cpu", "CPU at rest", "M4", "rest",
	"M5 lines", "one line a write", "M5", "log path", "M6", "commands", "M7", "orphans", "M8", "shim", "M9", "one more service",
)

// readable puts plain names in the place of the codes of measures.
func readable(text string) string { return plainNames.Replace(text) }

// ending closes the row of a measure, where there is one.
func ending(measure string) string {
	if measure == "" {
		return ""
	}
	return " |"
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
