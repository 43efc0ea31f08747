// Package archive copies files and trees as tar archives, into a sandbox and out of it. Neither side trusts the other, nor who owns the files:
// packing and unpacking leave no directory by a link, whoever puts it there and when.
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

// OneFile is an archive of one file.
func OneFile(name string, mode int64, data []byte) (*bytes.Buffer, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(data)), ModTime: time.Now()})
	if err == nil {
		_, err = w.Write(data)
	}
	return &out, errors.Join(err, w.Close())
}

// Pack writes a file or a tree as an archive in which it is called name. Sockets, pipes and devices stay behind.
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
	if !info.IsDir() {
		return errors.Join(packOne(archive, root, start, name), archive.Close())
	}
	err = fs.WalkDir(root.FS(), ".", func(at string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = packOne(archive, root, at, path.Join(name, at))
		}
		return err
	})
	return errors.Join(err, archive.Close())
}

func packOne(w *tar.Writer, root *os.Root, at, name string) error {
	info, err := root.Lstat(at)
	if err != nil {
		return err
	}
	link := ""
	switch mode := info.Mode(); {
	case mode.Type() == fs.ModeSymlink:
		if link, err = root.Readlink(at); err != nil {
			return err
		}
	case !mode.IsRegular() && !mode.IsDir():
		return nil
	}
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	if h.Name = name; info.IsDir() {
		h.Name += "/"
	}
	h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "", "" // the other side's own
	if !info.Mode().IsRegular() {
		return w.WriteHeader(h)
	}
	f, err := root.OpenFile(at, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if opened, err := f.Stat(); err != nil || !os.SameFile(opened, info) {
		return errors.Join(err, fmt.Errorf("%s has changed", at))
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.CopyN(w, f, h.Size) // it may grow meanwhile
	return err
}

// Unpack unpacks an archive below a directory.
func Unpack(r io.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return each(r, func(h *tar.Header, data io.Reader) error { return unpackOne(root, path.Clean(h.Name), h, data) })
}

// UnpackAs unpacks what an archive has below its first name, which becomes target.
func UnpackAs(r io.Reader, target string) error {
	var root *os.Root
	single := false
	err := each(r, func(h *tar.Header, data io.Reader) (err error) {
		_, name, _ := strings.Cut(strings.Trim(path.Clean("/"+h.Name), "/"), "/")
		if root == nil {
			single = name == "" && h.Typeflag != tar.TypeDir
			if root, err = openTarget(target, single); err != nil {
				return err
			}
		}
		switch {
		case single && name != "": // it would be put beside the target
			return fmt.Errorf("cannot unpack %s: %s is no directory", h.Name, target)
		case name != "":
		case h.Typeflag == tar.TypeDir:
			return nil // it is made
		default:
			name = filepath.Base(target)
		}
		return unpackOne(root, name, h, data)
	})
	if root != nil {
		return errors.Join(err, root.Close())
	}
	return cmp.Or(err, errors.New("the sandbox sent nothing"))
}

// openTarget opens the directory that is target, made if it is missing, or that is to hold it. A link is none: a copy may have left it.
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

func each(r io.Reader, do func(*tar.Header, io.Reader) error) error {
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, r)
			return err
		}
		if err == nil {
			err = do(h, archive)
		}
		if err != nil {
			return err
		}
	}
}

// unpackOne makes one entry. A file or a link that has its name is replaced, not followed.
func unpackOne(root *os.Root, name string, h *tar.Header, data io.Reader) error {
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
