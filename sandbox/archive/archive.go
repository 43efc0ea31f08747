// Package archive copies files and trees into a sandbox and out of it, as tar archives. It trusts neither side of a copy, nor
// the owner of the files. Packing and unpacking never follow a link out of a directory, even if another process creates the
// link in the meantime.
//
// The package owns no goroutine.
package archive

import (
	"archive/tar"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// OneFile returns a tar archive with one file.
func OneFile(name string, mode int64, data []byte) (*bytes.Buffer, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(data)), ModTime: time.Now()})
	_, written := w.Write(data)
	return &out, errors.Join(err, written, w.Close())
}

// Pack writes a file or a tree as a tar archive, under the given name. It leaves out sockets, pipes and devices.
func Pack(w io.Writer, source, name string) error {
	info, err := os.Lstat(source)
	if err != nil {
		return err
	}
	top, start := filepath.Split(filepath.Clean(source))
	if info.IsDir() {
		top, start = source, "."
	}
	root, err := os.OpenRoot(filepath.Clean(top))
	if err != nil {
		return err
	}
	defer root.Close()
	if opened, err := root.Lstat(start); err != nil || !os.SameFile(opened, info) {
		return errors.Join(err, fmt.Errorf("%s has changed", source))
	}
	archive := tar.NewWriter(w)
	return cmp.Or(Add(archive, rootTree{root}, start, name), archive.Close())
}

// Tree is a directory that [Add] can pack. Its methods do not follow symbolic links. Only the links of a Tree with a method
// Readlink are packed.
type Tree interface {
	Lstat(path string) (fs.FileInfo, error)
	ReadDir(path string) ([]fs.DirEntry, error)
	Open(path string) (*os.File, error)
}

type rootTree struct{ *os.Root }

func (t rootTree) ReadDir(path string) ([]fs.DirEntry, error) { return fs.ReadDir(t.FS(), path) }

func (t rootTree) Open(path string) (*os.File, error) {
	return t.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// Add adds a file or tree to an archive, under the given name. at is its path in the Tree. Add leaves out sockets, pipes and
// devices, and links if the Tree has no Readlink. The archive contains no owners, and only the permission bits of modes. A
// file that is removed in the meantime is left out.
func Add(w *tar.Writer, from Tree, at, name string) error { return addEntry(w, from, at, name, nil) }

// addEntry does the work of Add for one file or directory. listed is the entry in the listing of its directory, or nil for
// the entry that was passed to Add.
func addEntry(w *tar.Writer, from Tree, at, name string, listed fs.DirEntry) error {
	info, err := from.Lstat(at)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case listed != nil && listed.Type() != info.Mode().Type():
		return fmt.Errorf("%s has changed", at)
	}
	h := &tar.Header{Name: name, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime()}
	linked, links := from.(interface{ Readlink(string) (string, error) })
	switch mode := info.Mode(); {
	case mode.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		entries, err := from.ReadDir(at)
		err = errors.Join(err, w.WriteHeader(h))
		for _, e := range entries {
			if err == nil {
				err = addEntry(w, from, path.Join(at, e.Name()), path.Join(name, e.Name()), e)
			}
		}
		return err
	case mode.Type() == fs.ModeSymlink && links:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = linked.Readlink(at); err != nil {
			return err
		}
		return w.WriteHeader(h)
	case !mode.IsRegular():
		return nil
	}
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	f, err := from.Open(at)
	if err != nil {
		return err
	}
	defer f.Close()
	if opened, err := f.Stat(); err != nil || !sameFile(opened, info) {
		return errors.Join(err, fmt.Errorf("%s has changed", at))
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	// A file that has grown since the header was made is cut to the size in the header.
	if _, err = io.CopyN(w, f, h.Size); errors.Is(err, io.EOF) {
		err = fmt.Errorf("%s has become shorter", at)
	}
	return err
}

func sameFile(a, b fs.FileInfo) bool {
	one, isOne := a.Sys().(*syscall.Stat_t)
	other, isOther := b.Sys().(*syscall.Stat_t)
	return isOne && isOther && one.Dev == other.Dev && one.Ino == other.Ino
}

// Unpack unpacks a tar archive below a directory. It does not read beyond the end of the archive. If replace is true, it
// removes files and directories that are in the way of an entry, see removeConflicting.
func Unpack(r io.Reader, dir string, replace bool) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return eachEntry(r, func(h *tar.Header, data io.Reader) error {
		name := path.Clean(h.Name)
		if replace {
			removeConflicting(root, name, h.Typeflag == tar.TypeDir)
		}
		return unpackEntry(root, name, h, data)
	})
}

// removeConflicting removes a directory where the entry is a file, and a file where the entry needs a directory. It keeps links
// to directories below root. It ignores errors, because making the entry then fails and reports them.
func removeConflicting(root *os.Root, name string, isDir bool) {
	for at := name; at != path.Dir(at); at, isDir = path.Dir(at), true {
		info, err := root.Stat(at)
		if err != nil || !isDir {
			info, err = root.Lstat(at)
		}
		if err == nil && info.IsDir() != isDir {
			_ = root.RemoveAll(at)
		}
	}
}

// UnpackAs unpacks the first entry of an archive as target, and all entries below it into target.
func UnpackAs(r io.Reader, target string) error {
	var root *os.Root
	single := false
	err := eachEntry(r, func(h *tar.Header, data io.Reader) (err error) {
		_, name, _ := strings.Cut(strings.Trim(path.Clean("/"+h.Name), "/"), "/")
		if root == nil {
			single = name == "" && h.Typeflag != tar.TypeDir
			if root, err = openTarget(target, single); err != nil {
				return err
			}
		}
		switch {
		case single && name != "": // This entry would land beside target.
			return fmt.Errorf("cannot unpack %s: %s is no directory", h.Name, target)
		case name != "":
		case h.Typeflag == tar.TypeDir:
			return nil // The target exists already.
		default:
			name = filepath.Base(target)
		}
		return unpackEntry(root, name, h, data)
	})
	if err == nil {
		_, err = io.Copy(io.Discard, r) // Read the rest, because the sender fails if it can't write the padding.
	}
	if root != nil {
		return errors.Join(err, root.Close())
	}
	return cmp.Or(err, errors.New("the sandbox sent nothing"))
}

// openTarget opens the directory target, and makes it if it is missing. If holds is true, target is the path of a file, and
// openTarget opens the directory that holds the file. It refuses a target that is a symbolic link, which an earlier copy from
// a sandbox may have left.
func openTarget(target string, holds bool) (*os.Root, error) {
	if holds {
		return os.OpenRoot(filepath.Dir(target))
	}
	if err := os.Mkdir(target, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	info, err := os.Lstat(target)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(target)
	if err != nil {
		return nil, err
	}
	if opened, err := root.Stat("."); err != nil || !os.SameFile(opened, info) {
		return nil, errors.Join(err, fmt.Errorf("%s is a link; remove it first", target), root.Close())
	}
	return root, nil
}

func eachEntry(r io.Reader, do func(*tar.Header, io.Reader) error) error {
	archive := tar.NewReader(r)
	h, err := archive.Next()
	for ; err == nil; h, err = archive.Next() {
		if err := do(h, archive); err != nil {
			return err
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// unpackEntry makes one entry. It replaces an existing file or link of the same name, and follows no links.
func unpackEntry(root *os.Root, name string, h *tar.Header, data io.Reader) error {
	mode := fs.FileMode(h.Mode).Perm()
	if h.Typeflag == tar.TypeDir {
		if err := root.MkdirAll(name, mode|0o700); err != nil {
			return err
		}
		return root.Chmod(name, mode)
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	if info, err := root.Lstat(name); err == nil && !info.IsDir() {
		if err := root.Remove(name); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeReg:
		f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, data)
		if err := errors.Join(err, f.Chmod(mode), f.Close()); err != nil {
			return err
		}
		return root.Chtimes(name, time.Now(), h.ModTime)
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, name)
	}
	return fmt.Errorf("cannot unpack %s: it is neither a file nor a directory nor a link", h.Name)
}
