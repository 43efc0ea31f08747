package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// companionVerb runs a program of its own, hinit-NAME, which is installed beside hinit. PID 1 links nothing of it.
func companionVerb(name, summary string) verb { return companionOf("hinit-"+name, nil, name, summary) }

// companionOf is a verb of a program that has several: its arguments come after first.
func companionOf(program string, first []string, name, summary string) verb {
	return verb{
		name: name, args: "...", summary: summary, outside: true,
		run: func(t *terminal, c *call) int {
			doing := "run hinit " + name
			self, err := os.Executable()
			if err != nil {
				return t.failed(doing, err)
			}
			path := filepath.Join(filepath.Dir(self), program)
			err = unix.Exec(path, slices.Concat([]string{"hinit " + name}, first, c.raw), os.Environ())
			if errors.Is(err, fs.ErrNotExist) {
				return t.fail(exitFailed, "cannot %s: there is no %s; install it beside hinit", doing, path)
			}
			return t.failed(doing, &fs.PathError{Op: "exec", Path: path, Err: err})
		},
	}
}
