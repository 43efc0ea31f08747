package hinit_test

import (
	"fmt"
	"os/exec"
	"testing"
)

// mostProduct and mostPID1 are the largest numbers of lines of code that the product and the program of PID 1 may have, as
// tools/lines counts them. Lower them when code is removed.
const (
	mostProduct = 78_367
	mostPID1    = 38_410
)

// TestTheProductStaysSmall checks that the product and the program of PID 1 have no more lines of code than the limits
// above.
func TestTheProductStaysSmall(t *testing.T) {
	out, err := exec.Command("tools/lines").Output()
	if err != nil {
		t.Fatal(err)
	}
	var product, pid1 int
	if _, err := fmt.Sscanf(string(out), "product %d\npid1 %d\n", &product, &pid1); err != nil {
		t.Fatalf("tools/lines prints %q: %v", out, err)
	}
	if product < 10_000 || pid1 < 5_000 {
		t.Errorf("%d and %d lines are too few to be a count", product, pid1)
	}
	if product > mostProduct {
		t.Errorf("the product has %d lines of code, more than %d: take out what the new code makes superfluous (tools/lines rooms)", product, mostProduct)
	}
	if pid1 > mostPID1 {
		t.Errorf("PID 1's program has %d lines of code, more than %d: what can live outside it goes outside", pid1, mostPID1)
	}
}
