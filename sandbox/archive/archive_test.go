package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// TestACopyFromASandboxStaysInItsTarget checks that a copy writes only below its target, although
// the sandbox sends names and links that lead elsewhere.
func TestACopyFromASandboxStaysInItsTarget(t *testing.T) {
	home := t.TempDir()
	secret := filepath.Join(home, ".ssh", "authorized_keys")
	if err := os.MkdirAll(filepath.Dir(secret), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(secret, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(home, "out")
	for i, entries := range [][]tar.Header{
		{{Name: "x", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "x/a", Typeflag: tar.TypeSymlink, Linkname: "../.ssh"}, {Name: "x/b", Typeflag: tar.TypeSymlink, Linkname: "../.ssh/authorized_keys"}},
		{{Name: "x/a", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "x/a/authorized_keys", Typeflag: tar.TypeReg, Mode: 0o6755, Size: 4}},
		{{Name: "x/a/authorized_keys", Typeflag: tar.TypeReg, Mode: 0o6755, Size: 4}},
		{{Name: "x/../../.ssh/authorized_keys", Typeflag: tar.TypeReg, Mode: 0o6755, Size: 4}},
		{{Name: "x/b", Typeflag: tar.TypeReg, Mode: 0o6755, Size: 4}},
		{{Name: "x/.ssh/authorized_keys", Typeflag: tar.TypeReg, Mode: 0o6755, Size: 4}},
	} {
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		for _, h := range entries {
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			if h.Size > 0 {
				_, _ = w.Write([]byte("evil"))
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		err := UnpackAs(&archive, target)
		if text, readErr := os.ReadFile(secret); readErr != nil || string(text) != "mine" {
			t.Fatalf("copy %d replaced a file beside the target: %q, %v (%v)", i, text, readErr, err)
		}
	}
	info, err := os.Lstat(filepath.Join(target, "b"))
	if err != nil || !info.Mode().IsRegular() || info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
		t.Errorf("a file that was sent in the place of a link is %v, %v", info, err)
	}
}

// TestACopiedFileBringsNoOther checks that a copy of one file writes only this file. A hostile
// program in the sandbox may send others, such as a .bashrc.
func TestACopiedFileBringsNoOther(t *testing.T) {
	for _, kind := range []byte{tar.TypeReg, tar.TypeSymlink} {
		home := t.TempDir()
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		err := errors.Join(w.WriteHeader(&tar.Header{Name: "report", Typeflag: kind, Linkname: "/etc", Mode: 0o644}),
			w.WriteHeader(&tar.Header{Name: "report/.bashrc", Typeflag: tar.TypeReg, Mode: 0o644}), w.Close())
		if err != nil {
			t.Fatal(err)
		}
		if err := UnpackAs(&archive, filepath.Join(home, "report")); err == nil {
			t.Error("nothing was wrong")
		}
		if _, err := os.Lstat(filepath.Join(home, ".bashrc")); err == nil {
			t.Error("it wrote a file beside the target")
		}
	}
}

// TestPackingFollowsNoLink checks that packing follows no link. While a large file is sent, the
// directory's owner replaces a part of the tree by a link to root's files.
func TestPackingFollowsNoLink(t *testing.T) {
	dir, secret := t.TempDir(), t.TempDir()
	source := filepath.Join(dir, "source")
	if err := errors.Join(os.MkdirAll(source+"/d", 0o755), os.WriteFile(secret+"/secret", []byte("TOPSECRET"), 0o600), os.WriteFile(source+"/d/secret", nil, 0o600),
		os.WriteFile(source+"/a", make([]byte, 1<<20), 0o600), os.Symlink("/etc", source+"/link")); err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		packed <- Pack(w, source, "x")
		_ = w.Close()
	}()
	var all bytes.Buffer
	_, _ = io.CopyN(&all, r, 64<<10) // The packer has listed d and is now sending the file a.
	if err := errors.Join(os.Rename(source+"/d", source+"/d_"), os.Symlink(secret, source+"/d")); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(&all, r)
	if err := <-packed; err == nil || bytes.Contains(all.Bytes(), []byte("TOPSECRET")) {
		t.Errorf("a link was followed, or nothing said of it: %v", err)
	}
	if err := Pack(io.Discard, source+"/link", "x"); err != nil {
		t.Error(err)
	}
}

// TestASandboxThatHadReplacedAFileDidNotStartAgain checks that an archive can be unpacked over
// files of another kind. Otherwise one command in a sandbox could prevent all later starts.
func TestASandboxThatHadReplacedAFileDidNotStartAgain(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	pack := func() *bytes.Buffer {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		for _, h := range []tar.Header{
			{Name: "root/skills/", Typeflag: tar.TypeDir, Mode: 0o755},
			{Name: "root/skills/a/", Typeflag: tar.TypeDir, Mode: 0o755},
			{Name: "root/skills/a/x", Typeflag: tar.TypeReg, Mode: 0o644, Size: 5},
			{Name: "root/linked/x", Typeflag: tar.TypeReg, Mode: 0o644, Size: 5},
		} {
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			if h.Size > 0 {
				_, _ = w.Write([]byte("given"))
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return &out
	}
	beside := t.TempDir()
	for name, change := range map[string]func() error{
		"a file for a directory": func() error {
			return errors.Join(os.RemoveAll(at("root/skills/a")), os.WriteFile(at("root/skills/a"), nil, 0o644))
		},
		"a directory for a file": func() error {
			return errors.Join(os.Remove(at("root/skills/a/x")), os.MkdirAll(at("root/skills/a/x/y"), 0o755))
		},
		"a link that leads out": func() error {
			return errors.Join(os.RemoveAll(at("root/skills")), os.Symlink(beside, at("root/skills")))
		},
		"a link that leads out, above": func() error { return errors.Join(os.RemoveAll(at("root")), os.Symlink(beside, at("root"))) },
		"a link to nothing": func() error {
			return errors.Join(os.RemoveAll(at("root/skills/a")), os.Symlink("nothing", at("root/skills/a")))
		},
		"a link that stays": func() error {
			return errors.Join(os.RemoveAll(at("root/linked")), os.Mkdir(at("real"), 0o755), os.Symlink("../real", at("root/linked")))
		},
	} {
		if err := errors.Join(Unpack(pack(), dir, true), change(), Unpack(pack(), dir, true)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, file := range []string{"root/skills/a/x", "root/linked/x"} {
			if text, err := os.ReadFile(at(file)); string(text) != "given" {
				t.Errorf("%s: %s is %q (%v)", name, file, text, err)
			}
		}
		if name == "a link that stays" {
			if text, err := os.ReadFile(at("real/x")); string(text) != "given" {
				t.Errorf("%s: behind the link is %q (%v)", name, text, err)
			}
		}
	}
	if left, err := os.ReadDir(beside); len(left) > 0 || err != nil {
		t.Errorf("outside there is %v (%v)", left, err)
	}
	if err := errors.Join(os.RemoveAll(at("root/skills/a")), os.MkdirAll(at("root/skills/a/x/mine"), 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := Unpack(pack(), dir, false); err == nil {
		t.Error("a copy has replaced a directory by a file")
	}
	if _, err := os.Stat(at("root/skills/a/x/mine")); err != nil {
		t.Error(err)
	}
}

// shrinkingTree is a tree whose files become empty between Lstat and the read.
type shrinkingTree struct{ rootTree }

func (t shrinkingTree) Open(name string) (*os.File, error) {
	f, err := t.rootTree.Open(name)
	return f, errors.Join(err, os.Truncate(filepath.Join(t.Name(), name), 1))
}

// TestACopyOfAShrinkingFileSaidEOF checks that the error of a copy names a file that another
// process has truncated.
func TestACopyOfAShrinkingFileSaidEOF(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err = errors.Join(err, os.WriteFile(filepath.Join(dir, "log"), []byte("long"), 0o644)); err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := Add(tar.NewWriter(io.Discard), shrinkingTree{rootTree{root}}, ".", "x"); err == nil || err.Error() != "log has become shorter" {
		t.Error(err)
	}
}
