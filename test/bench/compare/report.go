package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// measureTable is the table of one measure.
type measureTable struct {
	measure
	rows []row
}

type row struct {
	name  string
	cells []cell
}

type cell struct {
	value, ratio float64 // Figure, and its ratio to hinit's.
	known        bool
	compared     bool
}

// sheets returns a table for each measure that has figures.
func (b *bench) sheets() []measureTable {
	var all []measureTable
	for _, m := range measures {
		s := measureTable{measure: m}
		for k := range b.figures.samples {
			if k.measure == m.id && !slices.Contains(s.columns, k.at) {
				s.columns = append(slices.Clone(s.columns), k.at)
			}
		}
		s.columns = slices.DeleteFunc(slices.Clone(s.columns), func(at string) bool {
			return !b.any(func(k key) bool { return k.measure == m.id && k.at == at })
		})
		if len(s.columns) == 0 {
			continue
		}
		if len(m.columns) == 0 {
			slices.SortFunc(s.columns, func(x, y string) int { return int(asNumber(x) - asNumber(y)) })
		} else {
			slices.Sort(s.columns[min(len(m.columns), len(s.columns)):])
		}
		for _, name := range b.order(m.id) {
			r := row{name: name}
			for _, at := range s.columns {
				var c cell
				c.value, c.known = b.figures.median(m.id, at, name)
				if name != hinitName {
					c.ratio, c.compared = b.figures.ratio(m.id, at, name, hinitName)
				}
				r.cells = append(r.cells, c)
			}
			s.rows = append(s.rows, r)
		}
		all = append(all, s)
	}
	return all
}

func (b *bench) any(so func(key) bool) bool {
	for k := range b.figures.samples {
		if so(k) {
			return true
		}
	}
	return false
}

// order returns the rows of a measure: the loop or empty program first, then hinit, then the others.
func (b *bench) order(measure string) []string {
	first := []string{trueName, emptyName, withoutInit, loopName, hinitName}
	for _, p := range b.peers {
		first = append(first, p.name())
	}
	var names []string
	for k := range b.figures.samples {
		if k.measure == measure && !slices.Contains(names, k.peer) {
			names = append(names, k.peer)
		}
	}
	place := func(name string) int {
		if i := slices.Index(first, name); i >= 0 {
			return i
		}
		return len(first)
	}
	slices.SortFunc(names, func(x, y string) int {
		if d := place(x) - place(y); d != 0 {
			return d
		}
		return strings.Compare(x, y)
	})
	return names
}

func asNumber(s string) float64 {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0
	}
	return n
}

// formatNumber formats a figure with its significant digits.
func formatNumber(v float64) string {
	switch {
	case v >= 100 || v <= -100 || v == float64(int64(v)):
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10 || v <= -10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

func (b *bench) print(w io.Writer) {
	for _, s := range b.sheets() {
		unit := ""
		if s.unit != "" {
			unit = ", " + s.unit
		}
		fmt.Fprintf(w, "\n%s: %s%s (in brackets: times hinit's)\n", s.id, s.title, unit)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "\t"+strings.Join(s.columns, "\t")+"\t")
		for _, r := range s.rows {
			fmt.Fprint(t, r.name, "\t")
			for _, c := range r.cells {
				fmt.Fprint(t, c.text(), "\t")
			}
			fmt.Fprintln(t)
		}
		_ = t.Flush()
	}
	if !b.quick { // The figures of a quick run mean nothing.
		b.printTargets(w)
	}
	for _, note := range b.notes {
		fmt.Fprintln(w, note)
	}
}

func (b *bench) printTargets(w io.Writer) {
	fmt.Fprintln(w, "\nTargets")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, v := range b.verdicts() {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", v.measure, v.at, v.promise(), v.shown(), v.metOrGap())
	}
	for _, g := range b.costGrowth() {
		fmt.Fprintf(t, "%s\tgrowth\tat most N^%g\tN^%.2f from %d to %d\t%s\n", g.measure, maxGrowth, g.exponent, g.from, g.to, metText(g.exponent <= maxGrowth))
	}
	_ = t.Flush()
}

func (c cell) text() string {
	if c.known && c.compared {
		return c.figure() + " (" + formatNumber(c.ratio) + ")"
	}
	return c.figure()
}

func (c cell) figure() string {
	if !c.known {
		return "-"
	}
	return formatNumber(c.value)
}

func metText(met bool) string {
	if met {
		return "met"
	}
	return "gap"
}

func (v verdict) metOrGap() string {
	if !v.known {
		return "-"
	}
	return metText(v.met)
}

func (b *bench) verdicts() []verdict {
	var all []verdict
	for _, t := range targets {
		if t.of == pebbleName && missingProgram(pebble{}) != "" {
			continue // The page says that this row is missing.
		}
		if v := t.judge(b.figures); v.known || b.wants(strings.Fields(t.measure)[0]) {
			all = append(all, v)
		}
	}
	return all
}

// maxGrowth is the exponent above which a cost counts as growing faster than the number of
// services. It allows for noise.
const maxGrowth = 1.05

// growingCost is a cost of hinit with its growth exponent.
type growingCost struct {
	measure  string
	from, to int
	exponent float64
}

// costGrowth returns how hinit's costs grow, from a hundred services to the largest number that was measured. With fewer services,
// constant costs would hide the growth.
func (b *bench) costGrowth() []growingCost {
	var all []growingCost
	for _, m := range measures {
		if !m.plot {
			continue
		}
		const from = 100
		first, ok := b.figures.median(m.id, strconv.Itoa(from), hinitName)
		to, last := 0, 0.0
		for k := range b.figures.samples {
			if n := int(asNumber(k.at)); k.measure == m.id && k.peer == hinitName && n > to {
				to = n
				last, _ = b.figures.median(m.id, k.at, hinitName)
			}
		}
		if ok && to > from {
			const smallest = 1 // The smallest meaningful figure, in any unit.
			all = append(all, growingCost{m.id, from, to, growthExponent(first, last, float64(to)/from, smallest)})
		}
	}
	return all
}
