package procstat_test

import (
	"errors"
	"io/fs"
	"os"
	"testing"

	"hinit/internal/procstat"
)

func TestParseSurvivesAnyCommandName(t *testing.T) {
	tail := " S 1 2 3 0 -1 0 0 0 0 0 5 6 7 8 20 0 1 0 777 4096 2"
	want := procstat.Stat{
		PID: 12, Parent: 1, Group: 2, Session: 3, State: 'S', Threads: 1, CPU: 11, ReapedCPU: 15, Start: 777, Memory: 2 * uint64(os.Getpagesize()),
	}
	for _, name := range []string{"sh", "a b", "x) S 9 9", "((", ")"} {
		for _, end := range []string{"", " 0 0", "\n"} {
			if st, ok := procstat.Parse([]byte("12 (" + name + ")" + tail + end)); !ok || st != want {
				t.Errorf("%q: %+v %v", name, st, ok)
			}
		}
	}
	for _, bad := range []string{"", "12", "12 (sh)", "x (sh)" + tail, "12 (sh) S 1", ") ("} {
		if _, ok := procstat.Parse([]byte(bad)); ok {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestReadFindsThisProcessAndNoOther(t *testing.T) {
	if st, err := procstat.Read(os.Getpid()); err != nil || st.PID != os.Getpid() || st.Parent != os.Getppid() || st.Memory == 0 || st.Dead() {
		t.Errorf("%+v, %v", st, err)
	}
	if _, err := procstat.Read(1 << 30); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such process: %v", err)
	}
}

func BenchmarkRead(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := procstat.Read(1); err != nil {
			b.Fatal(err)
		}
	}
}
