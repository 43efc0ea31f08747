package cli

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Run runs a command line where the sandboxes are: in this process or in the service.
type Run func(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) int

// Copy is hinit sandbox cp. It reads and writes files as the process that calls it, wherever the sandboxes are, and never trusts what a
// sandbox sends: no name leads out of the target, and no link is followed.
func Copy(ctx context.Context, args []string, run Run, out, errs io.Writer) int {
	_, opt, words, err := parse(args)
	if err != nil {
		return Main(ctx, nil, &Call{Args: args, Out: out, Err: errs}) // says so
	}
	from, fromInside := strings.CutPrefix(words[0], ":")
	to, toInside := strings.CutPrefix(words[1], ":")
	flags := []string{"--task", opt.task, "--profile", opt.profile, "--"}
	fail := func(err error) int {
		fmt.Fprintln(errs, sentence("copy "+words[0], err))
		return Failed
	}
	switch {
	case fromInside == toInside:
		fmt.Fprintln(errs, "cannot copy: one of the two must be in the sandbox, and begin with a colon")
		return Usage
	case toInside:
		dir, name := path.Dir(to), path.Base(to)
		if strings.HasSuffix(to, "/") {
			dir, name = to, filepath.Base(from)
		}
		r, w := io.Pipe()
		go func() { _ = w.CloseWithError(pack(from, name, w)) }() // the reader gets it
		source := &noted{Reader: r}
		code := run(ctx, append(append([]string{"_put"}, flags...), dir), source, out, errs)
		_ = r.Close() // ends the packing
		if source.err != nil {
			return fail(source.err)
		}
		return code
	}
	if info, err := os.Stat(to); strings.HasSuffix(to, "/") || err == nil && info.IsDir() {
		to = filepath.Join(to, path.Base(path.Clean("/"+from)))
	}
	r, w := io.Pipe()
	unpacked := make(chan error, 1)
	go func() {
		err := unpack(r, to)
		_ = r.CloseWithError(err) // ends the sending
		unpacked <- err
	}()
	code := run(ctx, append(append([]string{"_get"}, flags...), from), nil, w, errs)
	_ = w.Close() // a pipe of this process
	if err := <-unpacked; err != nil && code == Done {
		return fail(err)
	}
	return code
}

// noted keeps what was wrong with reading.
type noted struct {
	io.Reader
	err error
}

func (n *noted) Read(p []byte) (int, error) {
	count, err := n.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) {
		n.err = err
	}
	return count, err
}

// pack writes a file or a tree as a tar archive in which it is called name.
func pack(source, name string, to io.Writer) error {
	w := tar.NewWriter(to)
	err := filepath.WalkDir(source, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		link := ""
		switch mode := info.Mode(); {
		case mode&fs.ModeSymlink != 0:
			if link, err = os.Readlink(file); err != nil {
				return err
			}
		case !mode.IsRegular() && !mode.IsDir():
			return nil // sockets, devices
		}
		h, err := tar.FileInfoHeader(info, link)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(source, file)
		if err != nil {
			return err
		}
		h.Name = path.Join(name, filepath.ToSlash(rel))
		h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "", "" // the sandbox's own
		if err := w.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
			return err
		}
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, f)
		return err
	})
	return errors.Join(err, w.Close())
}

// unpack writes what an archive has below its first name to target.
func unpack(archive io.Reader, target string) error {
	dir, base := filepath.Split(filepath.Clean(target))
	if dir == "" {
		dir = "."
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	r := tar.NewReader(archive)
	for files := 0; ; files++ {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			if files == 0 {
				return errors.New("the sandbox sent nothing")
			}
			return nil
		}
		if err != nil {
			return err
		}
		_, rest, _ := strings.Cut(strings.Trim(path.Clean("/"+h.Name), "/"), "/")
		if err := unpackOne(root, filepath.Join(base, filepath.FromSlash(rest)), h, r); err != nil {
			return err
		}
	}
}

// below opens a directory in root. It follows no link, also none that a copy before this one has left there.
func below(root *os.Root, dir string) (*os.Root, error) {
	at, err := root.OpenRoot(".")
	if err != nil || dir == "." {
		return at, err
	}
	for part := range strings.SplitSeq(dir, string(filepath.Separator)) {
		info, err := at.Lstat(part)
		var next *os.Root
		if err == nil {
			next, err = at.OpenRoot(part)
		}
		_ = at.Close()
		if err != nil {
			return nil, err
		}
		at = next
		if opened, err := at.Stat("."); err != nil || !os.SameFile(info, opened) {
			_ = at.Close()
			return nil, fmt.Errorf("%s in the target is a link; remove it first", part)
		}
	}
	return at, nil
}

func unpackOne(target *os.Root, name string, h *tar.Header, data io.Reader) error {
	root, err := below(target, filepath.Dir(name))
	if err != nil {
		return err
	}
	defer root.Close()
	name = filepath.Base(name)
	mode := fs.FileMode(h.Mode).Perm()
	switch h.Typeflag {
	case tar.TypeDir:
		err := root.Mkdir(name, mode|0o700)
		if info, lerr := root.Lstat(name); errors.Is(err, fs.ErrExist) && lerr == nil && info.IsDir() {
			return nil
		}
		return err
	case tar.TypeReg:
		if info, err := root.Lstat(name); err == nil && !info.IsDir() { // a link, maybe: it is replaced, not followed
			if err := root.Remove(name); err != nil {
				return err
			}
		}
		f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, data)
		return errors.Join(err, f.Close())
	case tar.TypeSymlink:
		if _, err := root.Lstat(name); err == nil {
			return fmt.Errorf("%s is there already", name)
		}
		return root.Symlink(h.Linkname, name)
	}
	return nil // what else a sandbox may have has no place here
}
