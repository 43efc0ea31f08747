package promises_test

import (
	"bytes"
	"os"
	"testing"
)

// TestNoFaultsInWhatIsShipped checks that the shipped binary does not contain the fault injection.
func TestNoFaultsInWhatIsShipped(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	for file, want := range map[string]bool{built.shipped: false, built.faulty: true} {
		binary, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got := bytes.Contains(binary, []byte("HINIT_FAULTS")); got != want {
			t.Errorf("%s knows the variable: %v", file, got)
		}
	}
}
