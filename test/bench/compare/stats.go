package main

import "slices"

// key names a figure: the measure, what it was taken at (such as a number of services), and of whom.
type key struct{ measure, at, peer string }

// figures collect samples.
type figures map[key][]float64

func (f figures) add(measure, at, peer string, value float64) {
	k := key{measure, at, peer}
	f[k] = append(f[k], value)
}

// median of a figure, and whether there is one.
func (f figures) median(measure, at, peer string) (float64, bool) {
	samples := f[key{measure, at, peer}]
	if len(samples) == 0 {
		return 0, false
	}
	return median(samples), true
}

// ratio is the median of the ratios of each round, so that a slow moment of the machine hits both sides of it. It needs
// samples taken in turns.
func (f figures) ratio(measure, at, peer, other string) (float64, bool) {
	a, b := f[key{measure, at, peer}], f[key{measure, at, other}]
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

// median is the middle sample; of an even number, the mean of the two in the middle.
func median(samples []float64) float64 {
	sorted := slices.Sorted(slices.Values(samples))
	middle := len(sorted) / 2
	if len(sorted)%2 == 0 {
		return (sorted[middle-1] + sorted[middle]) / 2
	}
	return sorted[middle]
}
