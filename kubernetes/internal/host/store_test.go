package host

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hinit/kubernetes/internal/placement"
)

// volume makes a store with profile coder of object uid, whose file data has a text.
func volume(t *testing.T, uid, text string) (*Store, string) {
	t.Helper()
	dir := t.TempDir()
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	if text == "" {
		return s, dir
	}
	if err := s.Claim("coder", uid); err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(dir, "profiles", "coder")
	if err := os.MkdirAll(home, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "data"), []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	return s, dir
}

func look(t *testing.T, s *Store, uid string) placement.Local {
	t.Helper()
	l, err := s.Look("coder", uid)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestTheDataOfAProfileIsInOnePlaceAfterEachStep goes the way of a move, and back where it was cancelled.
func TestTheDataOfAProfileIsInOnePlaceAfterEachStep(t *testing.T) {
	s, dir := volume(t, "u1", "learnt")
	if l := look(t, s, "u1"); !l.Live || l.Aside != 0 {
		t.Fatalf("at first: %+v", l)
	}
	if l := look(t, s, "u2"); l.Live {
		t.Fatalf("another object: %+v", l)
	}
	if err := s.SetAside("coder", "u1", 3); err != nil {
		t.Fatal(err)
	}
	if l := look(t, s, "u1"); l.Live || l.Aside != 3 {
		t.Fatalf("set aside: %+v", l)
	}
	if err := s.TakeBack("coder", "u1", 3); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "profiles/coder/data"))
	if l := look(t, s, "u1"); !l.Live || l.Aside != 0 || string(text) != "learnt" {
		t.Fatalf("taken back: %+v %q %v", l, text, err)
	}
	if err := s.Retire("coder", "u1"); err != nil {
		t.Fatal(err)
	}
	kept, _ := filepath.Glob(filepath.Join(dir, retainedDir, "coder.u1.*", "data"))
	if l := look(t, s, "u1"); l.Live || len(kept) != 1 {
		t.Fatalf("retired: %+v %v", l, kept)
	}
}

// TestADirectoryThatSomebodyElseMadeIsNotTaken has a profile of that name which the fleet has not made.
func TestADirectoryThatSomebodyElseMadeIsNotTaken(t *testing.T) {
	s, dir := volume(t, "", "")
	if err := os.MkdirAll(filepath.Join(dir, "profiles/coder"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := s.Claim("coder", "u1"); err == nil || !strings.Contains(err.Error(), `cannot make profile "coder": its directory profiles/coder exists`) {
		t.Error(err)
	}
}

// TestAStreamThatEndsEarlyStoresNothing cuts an archive at many places.
func TestAStreamThatEndsEarlyStoresNothing(t *testing.T) {
	s, _ := volume(t, "u1", rand.Text()+strings.Repeat("x", 3000))
	var whole bytes.Buffer
	if err := s.within("profiles/coder", func(home *os.Root) error { return Tar{}.Export(context.Background(), home, &whole) }); err != nil {
		t.Fatal(err)
	}
	to, dir := volume(t, "", "")
	for cut := 0; cut < whole.Len()-1024; cut += 97 { // the last blocks of an archive are empty
		broken := io.MultiReader(bytes.NewReader(whole.Bytes()[:cut]), errReader{})
		if err := to.receive(context.Background(), "coder", "u1", "n1", broken, Tar{}); err == nil {
			t.Fatalf("%d of %d bytes were taken for the whole", cut, whole.Len())
		}
		if l := look(t, to, "u1"); l.Incoming != "" {
			t.Fatalf("after %d bytes: %+v", cut, l)
		}
	}
	if err := to.receive(context.Background(), "coder", "u1", "n1", &whole, Tar{}); err != nil {
		t.Fatal(err)
	}
	if l := look(t, to, "u1"); l.Incoming != "n1" || l.Live {
		t.Fatalf("the whole: %+v", l)
	}
	if err := to.Install("coder", "u1", "n1"); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "profiles/coder/data"))
	if l := look(t, to, "u1"); !l.Live || l.Incoming != "" || err != nil || info.Mode().Perm() != 0o640 {
		t.Fatalf("installed: %+v %v", l, err)
	}
}

// errReader is a connection that breaks.
type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// TestAnArchiveCannotWriteOutsideItsProfile has the entries of a hostile host.
func TestAnArchiveCannotWriteOutsideItsProfile(t *testing.T) {
	for name, entries := range map[string][]tar.Header{
		"up":        {{Name: "../escaped", Typeflag: tar.TypeReg}},
		"absolute":  {{Name: "/escaped", Typeflag: tar.TypeReg}},
		"by a link": {{Name: "out", Typeflag: tar.TypeSymlink, Linkname: "../.."}, {Name: "out/escaped", Typeflag: tar.TypeReg}},
		"a device":  {{Name: "dev", Typeflag: tar.TypeChar}},
		"twice":     {{Name: "a", Typeflag: tar.TypeReg}, {Name: "a", Typeflag: tar.TypeReg}},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range entries {
			h.Mode = 0o600
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		s, dir := volume(t, "", "")
		if err := s.receive(context.Background(), "coder", "u1", "n1", &b, Tar{}); err == nil {
			t.Errorf("%s: it was taken", name)
		}
		for _, at := range []string{dir, filepath.Join(dir, storeDir), filepath.Join(dir, partDir)} {
			if _, err := os.Lstat(filepath.Join(at, "escaped")); err == nil {
				t.Errorf("%s: it has written into %s", name, at)
			}
		}
	}
}

// TestFilesOfAProfileDoNotFollowItsLinks has an agent that links its SOUL.md to another profile's.
func TestFilesOfAProfileDoNotFollowItsLinks(t *testing.T) {
	s, dir := volume(t, "u1", "x")
	other := filepath.Join(dir, "profiles/other")
	home := filepath.Join(dir, "profiles/coder")
	if err := os.MkdirAll(other, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(other, "SOUL.md"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"SOUL.md": "../other/SOUL.md", "notes": "../other"} {
		if err := os.Symlink(target, filepath.Join(home, link)); err != nil {
			t.Fatal(err)
		}
	}
	_, err := s.apply("coder", map[string][]byte{"SOUL.md": []byte("new")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.apply("coder", map[string][]byte{"notes/SOUL.md": []byte("new")}); err == nil {
		t.Error("a file was written through a link out of the profile")
	}
	if text, err := os.ReadFile(filepath.Join(other, "SOUL.md")); err != nil || string(text) != "mine" {
		t.Errorf("the other profile has %q (%v)", text, err)
	}
}
