package archive_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"hinit/internal/testkit"
	"hinit/profiles/archive"
)

// homeWithManyLinks creates an in-memory home with 30,000 links with long names.
func homeWithManyLinks(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "crowd") //nolint:usetesting // the directory is in memory, where 30,000 links take no time
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	writeFile(t, filepath.Join(dir, "SOUL.md"), "soul")
	long := strings.Repeat("n", 240)
	if err := os.Mkdir(filepath.Join(dir, "crowd"), 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range 30_000 {
		if err := os.Symlink("x", fmt.Sprintf("%s/crowd/%s%06d", dir, long, i)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func liveHeapBytes() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// heapMeter is a writer that measures the heap after each 16 MB.
type heapMeter struct {
	n       int
	maxHeap int64
}

func (m *heapMeter) Write(p []byte) (int, error) {
	if m.n%(16<<20)+len(p) >= 16<<20 {
		m.maxHeap = max(m.maxHeap, liveHeapBytes())
	}
	m.n += len(p)
	return len(p), nil
}

// TestADirectoryOfManyFilesEndsNoHost checks that an export of a large directory needs little
// memory. A host has only 256 MiB.
func TestADirectoryOfManyFilesEndsNoHost(t *testing.T) {
	testkit.SkipIfShort(t)
	dir := homeWithManyLinks(t)
	before := liveHeapBytes()
	m := &heapMeter{}
	x := archive.Export{Home: dir, Name: "coder", AllowOutsideLinks: true, HomeIdle: true}
	head, _, _, err := x.Run(t.Context(), m)
	if err != nil || head.Files != 30_002 || m.maxHeap == 0 {
		t.Fatalf("%d files of %d bytes: %v", head.Files, m.n, err)
	}
	if used := m.maxHeap - before; used > 4<<20 {
		t.Errorf("the export of a large directory has taken %d MB of memory", used>>20)
	}
}

// TestManyLinesInAnEnvHoldUpNoClone checks that a clone of a .env with very many lines takes linear
// time.
func TestManyLinesInAnEnvHoldUpNoClone(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, ".env"), strings.Repeat("\n", 100_000)+"A_BOT_TOKEN=1:a\nB=2\n")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var out bytes.Buffer
	x := archive.Export{Home: dir, Name: "coder", ForClone: true, IncludeSecrets: true}
	head, _, _, err := x.Run(t.Context(), &out)
	if runtime.ReadMemStats(&after); err != nil || head.Bytes != 100_004 {
		t.Errorf("%+v, %v", head, err)
	}
	if copied := (after.TotalAlloc - before.TotalAlloc) >> 20; copied > 100 {
		t.Errorf("a .env of 100 KB took %d MB of memory", copied)
	}
}

// TestATokenOfSeveralLinesIsNotCloned checks that a clone omits all lines of a quoted token.
func TestATokenOfSeveralLinesIsNotCloned(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "SOUL.md"), "soul")
	writeFile(t, filepath.Join(dir, ".env"), "# mine\nA=\"1\n2\"\nexport X_BOT_TOKEN = \"first\nsecond\nB=third\" # why\nC='\nY_APP_TOKEN=4\n'\nAPI_SERVER_PORT='\n1'")
	out, _, _ := exportHome(t, archive.Export{Home: dir, ForClone: true, IncludeSecrets: true})
	if env := string(must(os.ReadFile(importHome(t, out) + "/.env"))(t)); env != "# mine\nA=\"1\n2\"\nC='\nY_APP_TOKEN=4\n'\n" {
		t.Errorf("the clone has %q", env)
	}
}

// TestADirectoryOfManyFilesIsSentInOneOrder checks that a continued archive keeps the file order of
// the interrupted one.
func TestADirectoryOfManyFilesIsSentInOneOrder(t *testing.T) {
	testkit.SkipIfShort(t)
	t.Parallel()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "SOUL.md"), "soul")
	for i := range 3000 {
		writeFile(t, fmt.Sprintf("%s/d%d/%x", dir, i%3, i*7919%3000), fmt.Sprint(i))
	}
	var whole, rest bytes.Buffer
	x := archive.Export{Home: dir, Name: "coder", HomeIdle: true}
	head, sum, _, err := x.Run(t.Context(), &whole)
	if err != nil {
		t.Fatal(err)
	}
	x.Snapshot, x.Offset = head.Snapshot, int64(whole.Len()/2)
	if _, again, _, err := x.Run(t.Context(), &rest); err != nil || again != sum || !bytes.Equal(rest.Bytes(), whole.Bytes()[x.Offset:]) {
		t.Errorf("the rest has %d bytes of %d, and its sum is %s, not %s (%v)", rest.Len(), whole.Len(), again, sum, err)
	}
	seen := map[string]bool{}
	for r := tar.NewReader(&whole); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if up := filepath.Dir(strings.TrimSuffix(h.Name, "/")); up != "." && up != "profile" && !seen[up] {
			t.Fatalf("%s comes before its directory", h.Name)
		}
		seen[strings.TrimSuffix(h.Name, "/")] = h.Typeflag == tar.TypeDir
	}
	if len(seen) != 3006 {
		t.Errorf("%d names were sent", len(seen))
	}
}

// TestAnImportRemovesADeepTree checks that an import can remove a leftover tree that is deeper than
// a path can be long.
func TestAnImportRemovesADeepTree(t *testing.T) {
	whole, _, _ := exportHome(t, archive.Export{Home: newHome(t), IncludeSecrets: true})
	dir := t.TempDir()
	left, work := filepath.Join(dir, archive.ImportPrefix+"two", "home"), filepath.Join(dir, "work")
	if err := errors.Join(os.MkdirAll(left, 0o700), os.MkdirAll(work, 0o700)); err != nil {
		t.Fatal(err)
	}
	for range 3000 {
		if err := errors.Join(os.Mkdir(work+"/up", 0o700), os.Rename(left, work+"/up/down"), os.Rename(work+"/up", left)); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := (&archive.Import{Dir: dir, Name: "two", Marker: "SOUL.md", AllowOutsideLinks: true}).Run(whole); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Dir(left)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the tree is left: %v", err)
	}
}

// TestFilesWithLongNamesComeBack checks that an archive whose names are longer than its files can
// be imported from a pipe.
func TestFilesWithLongNamesComeBack(t *testing.T) {
	testkit.SkipIfShort(t)
	t.Parallel()
	dir, err := os.MkdirTemp("/dev/shm", "long") //nolint:usetesting // the directory is in memory, where 3000 files take no time
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	writeFile(t, filepath.Join(dir, "SOUL.md"), "soul")
	long := dir + strings.Repeat("/"+strings.Repeat("\x01", 252), 16) + "/"
	for i := range 3000 {
		writeFile(t, fmt.Sprintf("%s%d", long, i), "")
	}
	for i := range 100 {
		for _, name := range []string{"%ssecret%d.pem", "%sout%d"} {
			if err := os.Symlink("/x", fmt.Sprintf(name, long, i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	out, head, _ := exportHome(t, archive.Export{Home: dir, HomeIdle: true})
	if head.Files != 3017 || len(head.LeftOut) != 2 {
		t.Errorf("%d files, and %d lists of others", head.Files, len(head.LeftOut))
	}
	importHome(t, out)
}
