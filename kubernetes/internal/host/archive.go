package host

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
)

// Archive writes the home of a stopped profile as a stream, and makes a home of one. Import refuses a stream that ends early. It does not
// wait for the disk.
type Archive interface {
	Export(ctx context.Context, home *os.Root, w io.Writer) error
	Import(ctx context.Context, home *os.Root, r io.Reader) error
}

// Tar is an [Archive] of directories, files and symbolic links, with their modes and times. Sockets and pipes are left out. An entry can't
// leave the home.
type Tar struct{}

// Export implements [Archive].
func (Tar) Export(ctx context.Context, home *os.Root, w io.Writer) error {
	t := tar.NewWriter(w)
	err := fs.WalkDir(home.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err = errors.Join(err, ctx.Err()); err != nil || name == "." {
			return err
		}
		info, err := home.Lstat(name)
		if err != nil {
			return err
		}
		target := ""
		switch mode := info.Mode(); {
		case mode&fs.ModeSymlink != 0:
			if target, err = home.Readlink(name); err != nil {
				return err
			}
		case !mode.IsRegular() && !mode.IsDir():
			return nil
		}
		h, err := tar.FileInfoHeader(info, target)
		if err != nil {
			return err
		}
		h.Name, h.Uname, h.Gname, h.Uid, h.Gid = name, "", "", 0, 0
		if err := t.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
			return err
		}
		f, err := home.Open(name)
		if err != nil {
			return err
		}
		_, err = io.CopyN(t, f, info.Size())
		return errors.Join(err, f.Close())
	})
	return errors.Join(err, t.Close())
}

// Import implements [Archive].
func (Tar) Import(ctx context.Context, home *os.Root, r io.Reader) error {
	t := tar.NewReader(r)
	type late struct {
		name string
		h    *tar.Header
	}
	var dirs []late // their modes and times are set last
	for ctx.Err() == nil {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			for i := len(dirs) - 1; i >= 0; i-- {
				d := dirs[i]
				err := errors.Join(home.Chmod(d.name, d.h.FileInfo().Mode().Perm()), home.Chtimes(d.name, d.h.ModTime, d.h.ModTime))
				if err != nil {
					return err
				}
			}
			return nil
		}
		if err != nil {
			return err
		}
		name := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = home.Mkdir(name, 0o700)
			dirs = append(dirs, late{name, h})
		case tar.TypeSymlink:
			err = home.Symlink(h.Linkname, name)
		case tar.TypeReg:
			err = importFile(home, name, h, t)
		default:
			err = fmt.Errorf("%q is a file of type %q, which an archive can't have", name, h.Typeflag)
		}
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

func importFile(home *os.Root, name string, h *tar.Header, r io.Reader) error {
	f, err := home.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	err = errors.Join(err, f.Chmod(h.FileInfo().Mode().Perm()), f.Close())
	if err != nil {
		return err
	}
	return home.Chtimes(name, h.ModTime, h.ModTime)
}
