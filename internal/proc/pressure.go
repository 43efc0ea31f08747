package proc

import (
	"bytes"
	"os"
	"strconv"
)

// ContainerMemory describes the memory of this container.
type ContainerMemory struct {
	Used    uint64  // without the file pages that the kernel can drop
	Limit   uint64  // 0 for no limit
	Stalled float64 // percent of the last 10 s in which all processes waited for memory; 0 if the kernel has no such number
}

// noLimit is the lowest number that stands for "no limit" in a cgroup of version 1.
const noLimit = 1 << 60

// ReadContainerMemory reads the container's own control group, of version 2 or 1 (cgroups(7)). It never waits for a disk.
func ReadContainerMemory() ContainerMemory { return containerMemory(cgroupRoot) }

func containerMemory(root string) (c ContainerMemory) {
	for _, v := range []struct{ dir, limit string }{{root, "/memory.max"}, {root + "/memory", "/memory.limit_in_bytes"}} {
		text, err := os.ReadFile(v.dir + v.limit)
		if err != nil {
			continue
		}
		limit, err := strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 64)
		used, ok := cgroupMemory(v.dir, false)
		if err != nil || limit >= noLimit || !ok {
			return c
		}
		c.Limit, c.Used = limit, used
		break
	}
	text, _ := os.ReadFile(root + "/memory.pressure")
	_, full, _ := bytes.Cut(text, []byte("full avg10="))
	if words := bytes.Fields(full); len(words) > 0 {
		c.Stalled, _ = strconv.ParseFloat(string(words[0]), 64)
	}
	return c
}
