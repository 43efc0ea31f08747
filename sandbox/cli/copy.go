package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/samber/lo"
	"golang.org/x/sys/unix"

	"hinit/internal/cmdline"
	"hinit/internal/control/show"
	"hinit/internal/fsutil"
	"hinit/internal/wholefile"
	"hinit/sandbox/archive"
)

// RunFunc is a function that executes a command line of `hinit sandbox` in the program that manages the sandboxes: this process
// or the service.
type RunFunc func(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) int

// Copy implements the verb cp. It reads and writes local files in this process, with the user's own rights, even if the
// service manages the sandboxes. It does not trust data from a sandbox: it unpacks nothing outside of the target, and follows
// no link.
func Copy(ctx context.Context, args []string, run RunFunc, out, errs io.Writer) int {
	_, opt, words, code, ok := parse(args, out, errs)
	if !ok {
		return code
	}
	from, fromInside := strings.CutPrefix(words[0], ":")
	to, toInside := strings.CutPrefix(words[1], ":")
	flags := []string{"--task", opt.task, "--profile", opt.profile, "--"}
	fail := func(err error) int {
		if at, is := errors.AsType[*fs.PathError](err); is && strings.HasPrefix(at.Path, "/proc/self/fd/") {
			local := lo.Ternary(fromInside, words[1], words[0])
			err = fmt.Errorf("%s %s: %w", at.Op, local, at.Err)
		}
		fmt.Fprintln(errs, show.EscapeLine(cmdline.FailureMessage("copy "+words[0], err)))
		return cmdline.ExitFailed
	}
	switch {
	case fromInside == toInside:
		fmt.Fprintln(errs, "cannot copy: one of the two must be in the sandbox, and begin with a colon")
		return cmdline.ExitUsage
	case toInside:
		dir, name := path.Dir(to), path.Base(to)
		if strings.HasSuffix(to, "/") {
			dir, name = to, filepath.Base(from)
		}
		source, end, err := openLocal(from)
		if err != nil {
			return fail(err)
		}
		defer end()
		r, w := io.Pipe()
		packed := make(chan error, 1)
		go func() {
			err := archive.Pack(w, source, name)
			_ = w.CloseWithError(err) // The transfer fails with this error.
			packed <- err
		}()
		code = run(ctx, append(append([]string{"_put"}, flags...), dir), r, out, errs)
		_ = r.Close() // Closing the pipe makes the packer fail and end.
		if err := <-packed; err != nil && !errors.Is(err, io.ErrClosedPipe) {
			return fail(err)
		}
		return code
	}
	fd, err := wholefile.OpenForRoot(to)
	switch {
	case err == nil: // The target is a directory, so the copy keeps its name inside the target.
		_ = unix.Close(fd) // This is only a check; [openLocal] opens the directory again.
		to = filepath.Join(to, path.Base(path.Clean("/"+from)))
	case strings.HasSuffix(to, "/") || errors.Is(err, fsutil.ErrSymlink):
		return fail(fmt.Errorf("cannot copy to %s: %w", to, err))
	}
	target, end, err := openLocal(to)
	if err != nil {
		return fail(err)
	}
	defer end()
	r, w := io.Pipe()
	unpacked := make(chan error, 1)
	go func() {
		err := archive.UnpackAs(r, target)
		_ = r.CloseWithError(err) // The transfer fails with this error.
		unpacked <- err
	}()
	code = run(ctx, append(append([]string{"_get"}, flags...), from), nil, w, errs)
	_ = w.Close() // Closing an io.Pipe can't fail.
	if err := <-unpacked; err != nil && code == cmdline.ExitDone {
		return fail(err)
	}
	return code
}

// openLocal opens the directory of a local file. It returns a path of the file that leads through the descriptor of that
// directory, and is valid until end is called. If root runs the program, openLocal follows only links that root has made.
// Otherwise an agent could replace a directory by a link and so direct root to another file.
func openLocal(typed string) (opened string, end func(), err error) {
	if os.Geteuid() != 0 || typed == "/" {
		return typed, func() {}, nil
	}
	full := filepath.Clean(typed)
	if base := filepath.Base(full); base == "." || base == ".." {
		if full, err = filepath.Abs(full); err != nil {
			return "", nil, err
		}
	}
	fd, err := wholefile.OpenForRoot(filepath.Dir(full))
	if err != nil {
		return "", nil, fmt.Errorf("cannot open the directory of %s: %w", typed, err)
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", fd, filepath.Base(full)), func() { _ = unix.Close(fd) }, nil
}
