package cpulist_test

import (
	"testing"

	"hinit/internal/cpulist"
)

func TestParse(t *testing.T) {
	set, err := cpulist.Parse("0-2,6,1023")
	if err != nil {
		t.Fatal(err)
	}
	for cpu := range cpulist.MaxCPU + 1 {
		if want := cpu <= 2 || cpu == 6 || cpu == 1023; set.IsSet(cpu) != want {
			t.Errorf("processor %d: %t", cpu, !want)
		}
	}
	for _, list := range []string{"", "a", "3-1", "0-", "0,,1", "1024", "-1", "0, 1"} {
		if set, err := cpulist.Parse(list); err == nil {
			t.Errorf("%q is %v", list, set)
		}
	}
}
