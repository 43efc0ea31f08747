package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"hinit/internal/cmdline"
)

// companionVerb runs a program of its own, hinit-NAME, which is installed beside hinit. PID 1 links nothing of it.
func companionVerb(name, summary string) Verb { return companionOf("hinit-"+name, nil, name, summary) }

// tool is a verb of hinit-tools: people need it at a keyboard, and PID 1 never does.
func tool(name, summary string) Verb {
	return companionOf("hinit-tools", []string{name}, name, summary)
}

// companionOf is a verb of a program that has several: its arguments come after first.
func companionOf(program string, first []string, name, summary string) Verb {
	return Verb{
		Name: name, Args: "...", Summary: summary, Outside: true,
		Run: func(t *Terminal, c *Call) int {
			doing := "run hinit " + name
			self, err := os.Executable()
			if err != nil {
				return t.Failed(doing, err)
			}
			path := filepath.Join(filepath.Dir(self), program)
			err = unix.Exec(path, slices.Concat([]string{"hinit " + name}, first, c.Raw), os.Environ())
			if errors.Is(err, fs.ErrNotExist) {
				return t.Fail(cmdline.Failed, "cannot %s: there is no %s; install it beside hinit", doing, path)
			}
			return t.Failed(doing, &fs.PathError{Op: "exec", Path: path, Err: err})
		},
	}
}
