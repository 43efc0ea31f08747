package tuning

import (
	"math"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLastDescriptorsAreKept(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	free, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	lowest := uint64(free.Fd())
	free.Close()
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	})
	for _, c := range []struct {
		more uint64
		ok   bool
	}{
		{reservedDescriptors + descriptorsPerService - 3, false},
		{reservedDescriptors + descriptorsPerService + 8, true},
	} {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: lowest + c.more, Max: before.Max}); err != nil {
			t.Fatal(err)
		}
		if err := CheckDescriptors(); (err == nil) != c.ok {
			t.Errorf("with %d free descriptors: %v", c.more, err)
		}
	}
}

func TestLimitOfProcessesIsThatOfTheCgroup(t *testing.T) {
	for _, c := range []struct {
		file, text string
		want       int
		ok         bool
	}{
		{"pids.max", "100\n", 100, true},
		{"pids.max", "max\n", 0, false},
		{"pids/pids.max", "77\n", 77, true},
		{"memory.max", "1\n", 0, false},
	} {
		dir := t.TempDir()
		if err := os.Mkdir(dir+"/pids", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir+"/"+c.file, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, ok := processLimit(dir); got != c.want && c.ok || ok != c.ok {
			t.Errorf("%s %q: %d, %v", c.file, c.text, got, ok)
		}
	}
}

// The number of processors must be the container's limit, even if hinit runs in a child group after a re-execution. Otherwise
// hinit would start as many gateways at once as the machine has processors.
func TestLimitOfProcessorsIsThatOfTheContainer(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]int{"": math.MaxInt, "max 100000\n": math.MaxInt, "50000 100000\n": 2, "250000 100000\n": 3, "400000 100000\n": 4, "5 0\n": math.MaxInt} {
		if err := os.WriteFile(dir+"/cpu.max", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := processorLimit(dir); got != want {
			t.Errorf("%q: %d processors, not %d", text, got, want)
		}
	}
}
