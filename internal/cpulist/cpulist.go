// Package cpulist parses lists of processors such as 0-3,6: the list format of cpuset(7), without blanks. Its errors are written
// for users. It starts no goroutine.
package cpulist

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// MaxCPU is the highest processor number that Parse accepts: a [unix.CPUSet] has no room for a higher one.
const MaxCPU = 1023

// Parse returns the set of processors in a list. A range such as 3-1 and an empty list are errors.
func Parse(list string) (*unix.CPUSet, error) {
	var set unix.CPUSet
	for part := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err := strconv.ParseUint(from, 10, 16)
		last, err2 := strconv.ParseUint(to, 10, 16)
		switch {
		case err != nil || err2 != nil:
			return nil, fmt.Errorf("expected processors such as \"0-3,6\", got %q", list)
		case last < first:
			return nil, fmt.Errorf("the range %s ends before it begins; write %s-%s", part, to, from)
		case last > MaxCPU:
			return nil, fmt.Errorf("a processor is from 0 to %d, got %d", MaxCPU, last)
		}
		for cpu := first; cpu <= last; cpu++ {
			set.Set(int(cpu))
		}
	}
	return &set, nil
}
