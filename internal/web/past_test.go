package web

import "testing"

func TestALineIsAsHighAsItsLargestValue(t *testing.T) {
	for want, values := range map[string][]float32{
		"":                  {1},
		"M22 9l1-9":         {0, 1},
		"M20 0l2 0 1 9":     {2, 2, 2, 0},
		"M20 9l1-5 1-4 1 0": {0, 1, 2, 2},
		"M21 8l1 0 1 0":     {0.2, 0.2, 0.2},
	} {
		least := float32(1)
		if values[0] == 0.2 {
			least = 2
		}
		if got := sparklinePath(values, least); got != want {
			t.Errorf("%v is %q, not %q", values, got, want)
		}
	}
}
