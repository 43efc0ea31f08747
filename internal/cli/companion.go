package cli

import (
	"errors"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"hinit/internal/cmdline"
)

// CompanionVerb is a verb of its own program, hinit-NAME, which is installed beside hinit. PID 1 links nothing of it.
func CompanionVerb(name, summary string) Verb { return CompanionOf("hinit-"+name, nil, name, summary) }

// CompanionOf is a verb of a program that has several verbs. The program gets first, and then the arguments.
func CompanionOf(program string, first []string, name, summary string) Verb {
	return Verb{
		Name: name, Args: "...", Summary: summary, Outside: true,
		Run: func(t *Terminal, c *Call) int {
			doing := "run hinit " + name
			path, err := execBeside(program, slices.Concat([]string{"hinit " + name}, first, c.Raw))
			if errors.Is(err, fs.ErrNotExist) {
				return t.Fail(cmdline.Failed, "cannot %s: there is no %s; install it beside hinit", doing, path)
			}
			return t.Failed(doing, err)
		},
	}
}

// execBeside replaces the process by a program that is installed beside this one. It returns only on failure, with the program's
// path.
func execBeside(program string, argv []string) (path string, err error) {
	if path, err = cmdline.Beside(program); err != nil {
		return path, err
	}
	return path, &fs.PathError{Op: "exec", Path: path, Err: unix.Exec(path, argv, os.Environ())}
}
