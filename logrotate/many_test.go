package logrotate

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"hinit/internal/fsutil"
	"hinit/internal/testkit"
	"hinit/logrotate/archive"
	"hinit/logrotate/reader"
)

// TestFiftyLogsAreFollowedAtOnce checks that fifty rotated and compressed logs can be followed with
// few descriptors and little memory.
func TestFiftyLogsAreFollowedAtOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	const logs, lines = 50, 600
	base := t.TempDir()
	s := newSet(Options{limits: Limits{MaxSize: 8000, Archives: 1000}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	got := make([][]string, logs)
	errs := make([]error, logs)
	var n atomic.Int64
	fds, heap := descriptors(t), heapSize()
	for i := range logs {
		all.Go(func() {
			o := reader.Options{Dir: filepath.Join(base, fmt.Sprint(i)), LastLines: -1, Previous: true, Follow: true}
			errs[i] = reader.Read(ctx, fsutil.ProcessActor(), o, func(line []byte) error {
				got[i] = append(got[i], string(line[stampLen:]))
				n.Add(1)
				return nil
			})
		})
	}
	var writers sync.WaitGroup
	for i := range logs {
		l := s.Open(fmt.Sprint("log", i), "", filepath.Join(base, fmt.Sprint(i), archive.CurrentFile))
		setLimits(l, Limits{Compress: i%2 == 0})
		stdout, stderr := openPipes(t, l)
		writers.Go(func() {
			defer closeAll(stdout, stderr)
			for j := range lines {
				if _, err := fmt.Fprintf(stdout, "log %d, line %d, which is one of many\n", i, j); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	testkit.Until(t, "all lines are read", func() bool { return n.Load() >= logs*lines })
	// Each follower has a file and a directory watch; the writers and a worker have files, too.
	if more := descriptors(t) - fds; more > 5*logs {
		t.Errorf("%d more descriptors are open", more)
	}
	if more := heapSize() - heap; more > 32<<20 {
		t.Errorf("the heap is %d bytes larger", more)
	}
	cancel()
	all.Wait()
	closeSet(t, s)
	for i := range logs {
		if errs[i] != nil {
			t.Error(errs[i])
		}
		want := make([]string, lines)
		for j := range want {
			want[j] = fmt.Sprintf("log %d, line %d, which is one of many", i, j)
		}
		checkLines(t, got[i], want...)
		if paths, err := archivePaths(filepath.Join(base, fmt.Sprint(i))); err != nil || len(paths) < 4 {
			t.Errorf("log %d has %d archives (%v): too few to prove anything", i, len(paths), err)
		}
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

func heapSize() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
