package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"hinit/kubernetes/api/v1alpha1"
)

// peakMemory returns the peak memory of the process during fn, minus its memory before fn.
func peakMemory(fn func()) int64 {
	defer debug.SetGCPercent(debug.SetGCPercent(10))
	now := func() int64 {
		s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		metrics.Read(s)
		return int64(s[0].Value.Uint64())
	}
	runtime.GC()
	before, most, done, ended := now(), int64(0), make(chan bool), make(chan bool)
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case <-time.After(5 * time.Millisecond):
				most = max(most, now()-before)
			}
		}
	}()
	fn()
	close(done)
	<-ended
	return most
}

// withMemoryVolume mounts an in-memory volume of the agents' user, and calls fn with its store as that user.
func withMemoryVolume(t *testing.T, fn func(s *Store, dir string)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become the agents' user")
	}
	dir, err := os.MkdirTemp("/dev/shm", "crowd") //nolint:usetesting // the directory is in memory
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chown(dir, 10000, 10000); err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Setfsuid(10000); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Setfsuid(0) }() // setfsuid changes only this thread.
	s, err := OpenStore(dir)
	if err == nil {
		err = s.writeRecord("coder", &record{UID: "u1"})
	}
	if err != nil {
		t.Fatal(err)
	}
	fn(s, dir)
}

// fillDirectory creates a directory with 60,000 long names.
func fillDirectory(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("n", 240)
	for i := range 60_000 {
		if err := os.Symlink("x", fmt.Sprintf("%s/%s%06d", dir, long, i)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAHomeOfManyFilesIsDeletedInLittleMemory checks that a host deletes a directory with many
// files, which their owner can't write, in little memory. A host has 256 MiB, and would otherwise
// be killed at each start.
func TestAHomeOfManyFilesIsDeletedInLittleMemory(t *testing.T) {
	withMemoryVolume(t, func(s *Store, dir string) {
		home := filepath.Join(dir, s.Home("coder"))
		fillDirectory(t, filepath.Join(home, "cache/module"))
		if err := os.Chmod(filepath.Join(home, "cache/module"), 0o500); err != nil {
			t.Fatal(err)
		}
		var err error
		if used := peakMemory(func() { err = errors.Join(s.Delete("coder", "u1", true), emptyWholeTrash(t.Context(), s)) }); used > 8<<20 {
			t.Errorf("the deletion has taken %d MB of memory", used>>20)
		}
		if err != nil || s.exists(s.Home("coder")) {
			t.Error(err)
		}
		if rest, err := os.ReadDir(filepath.Join(dir, trashDir)); err != nil || len(rest) > 0 {
			t.Errorf("%d are left: %v", len(rest), err)
		}
	})
}

// TestManyNamesInTheStoreEndNoHost checks that a host needs little memory although an agent fills the directories of
// the store, which belong to the agent's user.
func TestManyNamesInTheStoreEndNoHost(t *testing.T) {
	withMemoryVolume(t, func(s *Store, dir string) {
		fillDirectory(t, filepath.Join(dir, incomingDir))
		if err := os.MkdirAll(filepath.Join(dir, s.Home("coder")), 0o700); err != nil {
			t.Fatal(err)
		}
		var uids []string
		var names []string
		var err error
		used := peakMemory(func() {
			_, err = s.Inspect("coder", "u1", "", nil)
			uids, _ = s.UIDs("coder")
			names, _, _ = s.Names(func(string) bool { return false })
		})
		if err != nil || len(uids) != 1 || len(names) != 1 || used > 8<<20 {
			t.Errorf("%d MB of memory, %q, %d names: %v", used>>20, uids, len(names), err)
		}
	})
}

// TestRecordsOfAnAgentHoldNoHost checks that 200,000 forged records do not delay the host's own
// profiles. The host must not ask the API for each of them.
func TestRecordsOfAnAgentHoldNoHost(t *testing.T) {
	withMemoryVolume(t, func(s *Store, dir string) {
		live, long := filepath.Join(dir, liveDir), strings.Repeat("n", 240)
		err := errors.Join(os.MkdirAll(filepath.Join(dir, s.Home("coder")), 0o700), os.MkdirAll(filepath.Join(dir, s.Home("text")), 0o700))
		err = errors.Join(err, os.WriteFile(filepath.Join(live, "text"), []byte(`{"uid":"u2"}x`), 0o600))
		for i := range 200_000 {
			err = errors.Join(err, os.Link(filepath.Join(live, "text"), fmt.Sprintf("%s/%s%06d", live, long, i)))
		}
		if err != nil {
			t.Fatal(err)
		}
		p := &v1alpha1.AgentProfile{ObjectMeta: metav1.ObjectMeta{Name: "coder", Namespace: "agents", UID: "u1"}}
		p.Status = v1alpha1.AgentProfileStatus{Host: "me", Assignment: 1, Installed: 1}
		reads := 0
		api := interceptor.NewClient(newFakeAPI(p), interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
				reads++
				return c.Get(ctx, key, o, options...)
			},
		})
		h := newTestHost(t, "me", api, &fakeGateways{}, s)
		h.watched[ownField]["coder"] = p
		ended, end := context.WithCancel(t.Context())
		end()
		if used := peakMemory(func() { h.resync(ended) }); used > 8<<20 {
			t.Errorf("the host has taken %d MB of memory", used>>20)
		}
		queued := map[string]bool{}
		for h.queue.Len() > 0 {
			name, _ := h.queue.Get()
			if queued[name] = true; name != "coder" {
				if err := h.reconcile(t.Context(), name); err != nil {
					t.Fatal(err)
				}
			}
			h.queue.Done(name)
		}
		if !queued["coder"] || len(queued) != maxUnknownNames+1 || reads > 1 {
			t.Errorf("%d profiles were queued, its own among them: %t; %d were read from the API", len(queued), queued["coder"], reads)
		}
		if err := h.reconcile(t.Context(), "text"); err != nil || s.exists(liveDir+"/text") || !s.exists(s.Home("text")) {
			t.Errorf("the record of an agent's own profile: %v", err)
		}
		left := 0
		if err := s.eachEntry(liveDir, func(string, bool) { left++ }); err != nil || left > 200_002-maxUnknownNames || !s.exists(liveDir+"/coder") {
			t.Errorf("%d records are left: %v", left, err)
		}
	})
}

// TestADeepHomeIsDeleted checks the deletion of directories that are deeper than the longest path, and that their own
// user can't write.
func TestADeepHomeIsDeleted(t *testing.T) {
	withMemoryVolume(t, func(s *Store, dir string) {
		home, work := filepath.Join(dir, s.Home("coder")), filepath.Join(dir, "work")
		if err := errors.Join(os.MkdirAll(home, 0o700), os.MkdirAll(work, 0o700)); err != nil {
			t.Fatal(err)
		}
		for range 3000 {
			err := errors.Join(os.Mkdir(work+"/up", 0o700), os.Rename(home, work+"/up/down"), os.WriteFile(work+"/up/file", nil, 0o400), os.Rename(work+"/up", home))
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(home, 0o500); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.Delete("coder", "u1", true), emptyWholeTrash(t.Context(), s)); err != nil || s.exists(s.Home("coder")) {
			t.Error(err)
		}
		if rest, err := os.ReadDir(filepath.Join(dir, trashDir)); err != nil || len(rest) > 0 {
			t.Errorf("%d are left: %v", len(rest), err)
		}
	})
}

// TestTheDeletionOfAHomeOfManyFilesHoldsNoWorker checks that a worker does not wait for the
// deletion of a large home. Otherwise four such homes would keep all workers of a host busy.
func TestTheDeletionOfAHomeOfManyFilesHoldsNoWorker(t *testing.T) {
	withMemoryVolume(t, func(s *Store, dir string) {
		fillDirectory(t, filepath.Join(dir, s.Home("coder"), "cache"))
		began := time.Now()
		if err := s.Delete("coder", "u1", true); err != nil || s.exists(s.Home("coder")) {
			t.Fatal(err)
		}
		deleted := time.Since(began)
		if kept, err := filepath.Glob(filepath.Join(dir, trashDir, "*", "cache")); err != nil || len(kept) != 1 {
			t.Errorf("the files were deleted by a worker: %q, %v", kept, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := emptyWholeTrash(ctx, s); !errors.Is(err, context.Canceled) {
			t.Error("a host that ends deletes the files first:", err)
		}
		began = time.Now()
		if err := emptyWholeTrash(t.Context(), s); err != nil {
			t.Error(err)
		}
		t.Logf("a worker took %v, and the files are deleted after %v", deleted, time.Since(began))
		if rest, err := os.ReadDir(filepath.Join(dir, trashDir)); err != nil || len(rest) > 0 {
			t.Errorf("%d are left: %v", len(rest), err)
		}
		if err := errors.Join(os.Remove(filepath.Join(dir, trashDir)), os.Mkdir(filepath.Join(dir, "x"), 0o700), s.discard("x")); err != nil || s.exists("x") {
			t.Error("without a trash:", err)
		}
	})
}
