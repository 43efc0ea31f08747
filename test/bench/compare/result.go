package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"
)

// result is the content of the JSON file, which suffices to write the documentation page.
type result struct {
	Date     string            `json:"date"`
	Machine  machine           `json:"machine"`
	Versions map[string]string `json:"versions"`
	Notes    []string          `json:"notes"`
	Loads    map[string]span   `json:"loads"`
	Figures  []figure          `json:"figures"`
}

type figure struct {
	Measure string    `json:"measure"`
	At      string    `json:"at"`
	Of      string    `json:"of"`
	Median  float64   `json:"median"`
	Samples []float64 `json:"samples"`
}

func (b *bench) gatherResult() result {
	r := result{Date: time.Now().Format(time.DateOnly), Machine: thisMachine(), Versions: b.versions(), Notes: b.notes, Loads: b.figures.loads}
	for k, samples := range b.figures.samples {
		f := figure{Measure: k.measure, At: k.at, Of: k.peer, Median: digits(median(samples))}
		for _, v := range samples {
			f.Samples = append(f.Samples, digits(v))
		}
		r.Figures = append(r.Figures, f)
	}
	slices.SortFunc(r.Figures, func(x, y figure) int {
		return strings.Compare(x.Measure+"\x00"+x.Of+"\x00"+x.At, y.Measure+"\x00"+y.Of+"\x00"+y.At)
	})
	return r
}

// digits rounds a figure to one more than its significant digits.
func digits(v float64) float64 {
	if v == 0 {
		return 0
	}
	unit := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*unit) / unit
}

func (r result) writeJSON(path string) error {
	if path == "" {
		return nil
	}
	head := r
	head.Figures = nil
	text, err := json.MarshalIndent(head, "", "  ")
	if err != nil {
		return err
	}
	var w strings.Builder
	w.WriteString(strings.TrimSuffix(string(text), "null\n}") + "[")
	for k, f := range r.Figures {
		line, err := json.Marshal(f)
		if err != nil {
			return err
		}
		if k > 0 {
			w.WriteString(",")
		}
		w.WriteString("\n    " + string(line))
	}
	w.WriteString("\n  ]\n}\n")
	return os.WriteFile(path, []byte(w.String()), 0o644)
}

// load reads the figures of an earlier run instead of measuring.
func (b *bench) load(path string) (result, error) {
	var r result
	text, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("%s: %w", path, err)
	}
	for _, f := range r.Figures {
		b.figures.samples[key{f.Measure, f.At, f.Of}] = f.Samples
	}
	for measure, s := range r.Loads {
		b.figures.widenLoad(measure, s)
	}
	b.notes = r.Notes
	b.peers = b.allPeers() // The order of the rows depends on the peers.
	return r, nil
}

func (b *bench) versions() map[string]string {
	all := map[string]string{}
	for _, p := range b.peers {
		if v := p.version(); v != "" {
			all[p.name()] = v
		}
	}
	return all
}
