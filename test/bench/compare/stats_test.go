package main

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		samples []float64
		want    float64
	}{
		{[]float64{7}, 7},
		{[]float64{9, 1, 5}, 5},
		{[]float64{4, 1, 3, 2}, 2.5},
		{[]float64{1, 9}, 5},
		{[]float64{1, 1, 1000}, 1},
	} {
		if got := median(c.samples); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.samples, got, c.want)
		}
	}
}

func TestRatioIsTakenInEachRound(t *testing.T) {
	f := newFigures()
	for _, slow := range []float64{1, 10, 3} { // The machine was slow in the second round, so both figures are larger.
		f.add("M2", "10", "a", 4*slow)
		f.add("M2", "10", "b", 2*slow)
	}
	if got, ok := f.ratio("M2", "10", "a", "b"); !ok || got != 2 {
		t.Errorf("ratio = %v, %v, want 2", got, ok)
	}
	if _, ok := f.ratio("M2", "10", "a", "c"); ok {
		t.Error("there is a ratio to what was not measured")
	}
	f.add("M4", "10", "a", 3)
	f.add("M4", "10", "b", 0)
	if _, ok := f.ratio("M4", "10", "a", "b"); ok {
		t.Error("there is a ratio to zero")
	}
}

func TestTargets(t *testing.T) {
	f := newFigures()
	f.add("M3", "restart", hinitName, 1.9)
	f.add("M7", "µs", hinitName, 30)
	f.add("M7", "µs", "tini", 10)
	f.add("M10 check", "told", hinitName, 99)
	for _, c := range []struct {
		target target
		known  bool
		met    bool
	}{
		{target{measure: "M3", at: "restart", limit: 2}, true, true},
		{target{measure: "M3", at: "restart", limit: 1.8}, true, false},
		{target{measure: "M7", at: "µs", limit: 2.5, of: "tini"}, true, false},
		{target{measure: "M7", at: "µs", limit: 3, of: "tini"}, true, true},
		{target{measure: "M7", at: "µs", limit: 3, of: "catatonit"}, false, false},
		{target{measure: "M10 check", at: "told", limit: 100, least: true}, true, false},
		{target{measure: "M10 check", at: "told", limit: 99, least: true}, true, true},
	} {
		if v := c.target.judge(f); v.known != c.known || v.met != c.met {
			t.Errorf("%+v: known %v, met %v", c.target, v.known, v.met)
		}
	}
}

func TestEveryGapIsExplained(t *testing.T) {
	b := newMeasuredBench()
	for _, g := range targets {
		why := b.explainGap(strings.Fields(g.measure)[0])
		if why == "" || strings.Contains(why, "%!") {
			t.Errorf("%s: %q", g.measure, why)
		}
	}
}

func TestEveryTargetHasATable(t *testing.T) {
	columns := map[string][]string{}
	for _, m := range measures {
		columns[m.id] = m.columns
	}
	for _, g := range targets {
		at, ok := columns[g.measure]
		if !ok {
			t.Errorf("there is no measure %q", g.measure)
		}
		if len(at) > 0 && !strings.Contains(strings.Join(at, "|"), g.at) {
			t.Errorf("%s has no column %q", g.measure, g.at)
		}
	}
}

func TestGrowth(t *testing.T) {
	for _, c := range []struct{ from, to, ratio, smallest, want float64 }{
		{10, 200, 20, 1, 1},
		{10, 10, 20, 1, 0},
		{10, 4000, 20, 1, 2},
		{0, 0, 20, 1, 0},
		{0.2, 20, 20, 1, 1},
	} {
		if got := growthExponent(c.from, c.to, c.ratio, c.smallest); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("growth from %v to %v over %v = %v, want %v", c.from, c.to, c.ratio, got, c.want)
		}
	}
}

func TestProcFiles(t *testing.T) {
	const smaps = "00400000-7ffd ---p 00000000 00:00 0 [rollup]\nRss:  9000 kB\nPss:  1234 kB\nPss_Dirty:  800 kB\nPrivate_Dirty:  700 kB\n"
	if got := parseFields([]byte(smaps), "Pss"); got != 1234 {
		t.Errorf("Pss = %d", got)
	}
	const status = "Name:\ta:b\nvoluntary_ctxt_switches:\t40\nnonvoluntary_ctxt_switches:\t2\n"
	if got := parseFields([]byte(status), "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"); got != 42 {
		t.Errorf("context switches = %d", got)
	}
	if got := parseSchedstat([]byte("1500000 20 3\n")); got != 1500*time.Microsecond {
		t.Errorf("schedstat = %v", got)
	}
	if got := parseSchedstat(nil); got != 0 {
		t.Errorf("schedstat of nothing = %v", got)
	}
	before, err := cpuTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); {
	}
	after, err := cpuTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if after <= before {
		t.Errorf("CPU time went from %v to %v", before, after)
	}
}

func TestRunScriptQuotesEveryWord(t *testing.T) {
	s := &site{services: []string{"a", "b"}, command: []string{"/bin/x y", "it's"}, first: []string{"other"}}
	if got, want := s.runScript("b"), "#!/bin/sh\nexec 2>&1\nexec '/bin/x y' 'it'\\''s'\n"; got != want {
		t.Errorf("script = %q, want %q", got, want)
	}
	if got := s.runScript("a"); !strings.HasSuffix(got, "exec 'other'\n") {
		t.Errorf("script of the first = %q", got)
	}
}

func newMeasuredBench() *bench {
	b := &bench{figures: newFigures()}
	for _, n := range []string{"1", "10", "100", "500", "2000"} {
		b.figures.add("M2", n, hinitName, 2*asNumber(n))
		b.figures.add("M2", n, loopName, asNumber(n))
		b.figures.add("M4", n, hinitName, 0)
	}
	b.figures.add("M2", "500", "s6", 2500)
	b.figures.add("M3", "restart", hinitName, 1)
	b.figures.add("M8", "whole", hinitName, 1)
	b.figures.add("M8", "added", hinitName, 0.5)
	b.figures.add("M8", "whole", trueName, 0.5)
	return b
}

func TestPlotIsWellFormed(t *testing.T) {
	drawn := 0
	for _, s := range newMeasuredBench().sheets() {
		p, ok := s.plotOf()
		if !ok {
			continue
		}
		drawn++
		text := p.svg()
		for d := xml.NewDecoder(strings.NewReader(text)); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v\n%s", s.id, err, text)
			}
		}
		if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
			t.Errorf("%s has places that are no numbers:\n%s", s.id, text)
		}
		if !strings.Contains(text, ">hinit<") {
			t.Errorf("%s does not name hinit", s.id)
		}
	}
	if drawn != 2 {
		t.Errorf("%d plots, want those of M2 and M4", drawn)
	}
}

func TestLabelsOfAPlotDoNotCover(t *testing.T) {
	var p plot
	for _, name := range []string{"a", "b", "c", "d"} {
		p.lines = append(p.lines, line{name: name, points: []point{{1, 5}, {10, 5}}})
	}
	places := p.labels(axisScale{1, 10, frameLeft, frameRight}, axisScale{1, 10, frameDown, frameTop})
	for i, at := range places {
		for j := range i {
			if math.Abs(at.y-places[j].y) < 14 {
				t.Errorf("%s and %s are at %v and %v", p.lines[i].name, p.lines[j].name, at, places[j])
			}
		}
		if at.y < frameTop || at.y > frameDown {
			t.Errorf("%s is at %v, outside of the frame", p.lines[i].name, at)
		}
	}
}

func TestPageHasFiguresTargetsAndPictures(t *testing.T) {
	dir := t.TempDir()
	b := newMeasuredBench()
	b.addRemark("nitro is left out: there is no nitro here")
	again := &bench{figures: newFigures()}
	if err := b.gatherResult().writeJSON(filepath.Join(dir, "figures.json")); err != nil {
		t.Fatal(err)
	}
	r, err := again.load(filepath.Join(dir, "figures.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := again.writeDocs(dir, r); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "benchmarks.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"; 500 services: 2 × (≤1.3 × bare loop)",
		" other targets are met.",
		"\nbare loop  1  10  100   500  2000\n",
		"whole  added\n",
		"- nitro is left out: there is no nitro here.",
		"(img/bench-m2.svg)",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "img", "bench-m2.svg")); err != nil {
		t.Error(err)
	}
}
