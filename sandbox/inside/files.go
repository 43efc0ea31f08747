package inside

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"hinit/internal/guard"
	"hinit/sandbox/mux"
)

func fileFault(err error) mux.End { return mux.End{Fault: mux.FileFault, Code: 1, Text: err.Error()} }

// reader returns what the client sends as a stream. The caller closes it.
func (ch *channel) reader() *io.PipeReader {
	r, w := io.Pipe()
	guard.Go("receiving a file", func() {
		_, err := ch.input.WriteTo(w)
		select {
		case <-ch.cancels: // what came is not all of it
			err = io.ErrUnexpectedEOF
		default:
		}
		_ = w.CloseWithError(err)
	})
	return r
}

// writer sends what is written to it.
type writer struct{ ch *channel }

func (w writer) Write(p []byte) (n int, err error) {
	for n < len(p) {
		room := w.ch.output.Take(len(p) - n)
		if room == 0 {
			return n, io.ErrClosedPipe
		}
		if err := w.ch.c.w.Write(mux.KindOutput, w.ch.id, p[n:n+room]); err != nil {
			return n, err
		}
		n += room
	}
	return n, nil
}

// put makes a file of what the client sends, whole or not at all.
func (ch *channel) put() mux.End {
	r := ch.reader()
	defer r.Close()
	if err := replace(ch.open.Path, fs.FileMode(ch.open.FileMode)&fs.ModePerm, r); err != nil {
		return fileFault(err)
	}
	return mux.End{}
}

func replace(path string, mode fs.FileMode, r io.Reader) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".hinit-*")
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(f, r)
	err = errors.Join(err, f.Chmod(mode), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// get sends a file.
func (ch *channel) get() mux.End {
	f, err := os.Open(ch.open.Path)
	if err != nil {
		return fileFault(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.IsDir() {
		return fileFault(fmt.Errorf("cannot read %s: it is a directory", ch.open.Path))
	}
	if _, err := io.Copy(writer{ch}, f); err != nil {
		return fileFault(err)
	}
	return mux.End{}
}

// getTree sends a path as an archive. Names in it begin with the last element of the path.
func (ch *channel) getTree() mux.End {
	top := filepath.Clean(ch.open.Path)
	w := tar.NewWriter(writer{ch})
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return pack(w, filepath.Dir(top), path, d)
	})
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return fileFault(err)
	}
	return mux.End{}
}

func pack(w *tar.Writer, below, path string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	target := ""
	switch {
	case info.Mode().Type() == fs.ModeSymlink:
		if target, err = os.Readlink(path); err != nil {
			return err
		}
	case !info.Mode().IsRegular() && !info.IsDir():
		return nil // sockets and devices mean nothing elsewhere
	}
	header, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	name, err := filepath.Rel(below, path)
	if err != nil {
		return err
	}
	header.Name = name
	if info.IsDir() {
		header.Name += "/"
	}
	header.Uname, header.Gname = "", ""
	if err := w.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.CopyN(w, f, header.Size) // it may grow meanwhile
	return err
}

// putTree unpacks an archive below a directory. Nothing in it reaches outside.
func (ch *channel) putTree() mux.End {
	r := ch.reader()
	defer r.Close()
	root, err := os.OpenRoot(ch.open.Path)
	if err != nil {
		return fileFault(err)
	}
	defer root.Close()
	archive := tar.NewReader(r)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			_, _ = io.Copy(io.Discard, r)
			return mux.End{}
		}
		if err == nil {
			err = unpack(root, header, archive)
		}
		if err != nil {
			return fileFault(err)
		}
	}
}

func unpack(root *os.Root, header *tar.Header, r io.Reader) error {
	name := filepath.Clean(header.Name)
	mode := header.FileInfo().Mode()
	switch header.Typeflag {
	case tar.TypeDir:
		if err := root.MkdirAll(name, mode.Perm()|0o700); err != nil {
			return err
		}
		return root.Chmod(name, mode.Perm())
	case tar.TypeReg:
		if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode.Perm())
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		if err := errors.Join(err, f.Chmod(mode.Perm()), f.Close()); err != nil {
			return err
		}
		return root.Chtimes(name, time.Now(), header.ModTime)
	case tar.TypeSymlink:
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return root.Symlink(header.Linkname, name)
	case tar.TypeLink:
		return root.Link(filepath.Clean(header.Linkname), name)
	}
	return fmt.Errorf("cannot unpack %s: it is neither a file nor a directory nor a link", header.Name)
}
