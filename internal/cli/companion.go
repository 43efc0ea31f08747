package cli

import (
	"errors"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"hinit/internal/cmdline"
)

// CompanionVerb returns a verb that a separate program carries out: hinit-NAME, which is installed beside hinit. Its code is not
// linked into PID 1.
func CompanionVerb(name, summary string) Verb { return CompanionOf("hinit-"+name, nil, name, summary) }

// CompanionOf returns a verb that a program with several verbs carries out. The program gets the arguments in first before the
// arguments of the user.
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

// execBeside replaces this process by a program that is installed beside its own. It returns only on failure, with the path of
// the program.
func execBeside(program string, argv []string) (path string, err error) {
	if path, err = cmdline.Beside(program); err != nil {
		return path, err
	}
	return path, &fs.PathError{Op: "exec", Path: path, Err: unix.Exec(path, argv, os.Environ())}
}
