package proc

import (
	"os"
	"path/filepath"
	"testing"
)

func TestTheMemoryOfTheContainerIsItsControlGroups(t *testing.T) {
	v2 := map[string]string{"memory.max": "1000\n", "memory.current": "600\n", "memory.stat": "inactive_file 60\nactive_file 30\nslab_reclaimable 10\nshmem 70\nkernel 35\n", "memory.swap.current": "50\n", "memory.pressure": "some avg10=9.00 avg60=0.00\nfull avg10=4.50 avg60=0.00 avg300=0.00 total=0\n"}
	for _, tt := range []struct {
		what   string
		change map[string]string
		want   ContainerMemory
	}{
		{"version 2", nil, ContainerMemory{500, 1000, 70, 25, 4.5}},
		{"buffers of TCP, and page tables", map[string]string{"memory.stat": "kernel 135\nslab_reclaimable 10\npagetables 100\nsock 40\n"}, ContainerMemory{590, 1000, 0, 65, 4.5}},
		{"no limit", map[string]string{"memory.max": "max\n"}, ContainerMemory{}},
		{"no pressure", map[string]string{"memory.pressure": ""}, ContainerMemory{500, 1000, 70, 25, 0}},
		{"nothing", map[string]string{"memory.max": "", "memory.current": ""}, ContainerMemory{}},
		{"version 1", map[string]string{"memory.max": "", "memory.current": "", "memory.pressure": "", "memory/memory.limit_in_bytes": "900\n", "memory/memory.usage_in_bytes": "300\n", "memory/memory.stat": "active_file 1\ntotal_inactive_file 80\ntotal_active_file 20\nshmem 1\ntotal_shmem 40\n"}, ContainerMemory{200, 900, 40, 0, 0}},
		{"version 1 without a limit", map[string]string{"memory.max": "", "memory.current": "", "memory/memory.limit_in_bytes": "9223372036854771712\n", "memory/memory.usage_in_bytes": "300\n"}, ContainerMemory{}},
	} {
		root := t.TempDir()
		for _, files := range []map[string]string{v2, tt.change} {
			for name, text := range files {
				file := filepath.Join(root, name)
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				if text == "" {
					_ = os.Remove(file)
				}
			}
		}
		if got := containerMemory(root); got.Used != tt.want.Used || got.Limit != tt.want.Limit || got.Shared != tt.want.Shared || got.Kernel != tt.want.Kernel || tt.want.Limit > 0 && got.Stalled != tt.want.Stalled {
			t.Errorf("%s: %+v, want %+v", tt.what, got, tt.want)
		}
	}
}
