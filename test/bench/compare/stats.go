package main

import (
	"math"
	"slices"
)

// key identifies a figure by its measure, its parameter (such as a number of services), and its
// peer.
type key struct{ measure, at, peer string }

// figures collects samples, and the machine's load when they were taken.
type figures struct {
	samples map[key][]float64
	loads   map[string]span
	load    func() float64 // Returns the current load of the machine.
}

type span struct {
	From float64 `json:"from"`
	To   float64 `json:"to"`
}

func newFigures() figures {
	return figures{map[key][]float64{}, map[string]span{}, loadAverage}
}

func (f figures) add(measure, at, peer string, value float64) {
	f.addEarlier(measure, at, peer, value)
	now := f.load()
	f.widenLoad(measure, span{now, now})
}

// addEarlier adds an earlier sample, without the current load.
func (f figures) addEarlier(measure, at, peer string, value float64) {
	k := key{measure, at, peer}
	f.samples[k] = append(f.samples[k], value)
}

// widenLoad widens the range of a measure's load.
func (f figures) widenLoad(measure string, s span) {
	if was, known := f.loads[measure]; known {
		s = span{math.Min(was.From, s.From), math.Max(was.To, s.To)}
	}
	f.loads[measure] = s
}

// median returns the median of a figure; false if it has no samples.
func (f figures) median(measure, at, peer string) (float64, bool) {
	samples := f.samples[key{measure, at, peer}]
	if len(samples) == 0 {
		return 0, false
	}
	return median(samples), true
}

// ratio returns the median ratio of two figures of the same rounds, so that slow moments of the
// machine cancel out. The samples must have been taken in turns.
func (f figures) ratio(measure, at, peer, other string) (float64, bool) {
	a, b := f.samples[key{measure, at, peer}], f.samples[key{measure, at, other}]
	n := min(len(a), len(b))
	if n == 0 {
		return 0, false
	}
	all := make([]float64, n)
	for i := range all {
		if b[i] == 0 {
			return 0, false
		}
		all[i] = a[i] / b[i]
	}
	return median(all), true
}

// median returns the median of the samples.
func median(samples []float64) float64 {
	sorted := slices.Sorted(slices.Values(samples))
	middle := len(sorted) / 2
	if len(sorted)%2 == 0 {
		return (sorted[middle-1] + sorted[middle]) / 2
	}
	return sorted[middle]
}
