package main

import (
	"math"
	"slices"
)

// key names a figure: the measure, what it was measured at (such as a number of services), and whose it is.
type key struct{ measure, at, peer string }

// figures collects samples, and the load of the machine at their time.
type figures struct {
	samples map[key][]float64
	loads   map[string]span
	load    func() float64 // load returns the present load of the machine
}

// span is a range from the lowest to the highest value.
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

// addEarlier adds a sample of an earlier time, without the present load.
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

// median returns the median of a figure, and whether there are samples.
func (f figures) median(measure, at, peer string) (float64, bool) {
	samples := f.samples[key{measure, at, peer}]
	if len(samples) == 0 {
		return 0, false
	}
	return median(samples), true
}

// ratio returns the median of the ratios of two figures in each round. A slow moment of the machine affects both figures of a
// round. The samples must have been taken in turns.
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

// median returns the middle sample or, of an even number, the mean of the two in the middle.
func median(samples []float64) float64 {
	sorted := slices.Sorted(slices.Values(samples))
	middle := len(sorted) / 2
	if len(sorted)%2 == 0 {
		return (sorted[middle-1] + sorted[middle]) / 2
	}
	return sorted[middle]
}
