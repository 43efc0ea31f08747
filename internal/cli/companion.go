package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"hinit/internal/cmdline"
)

// companionVerb is a verb of its own program, hinit-NAME, which is installed beside hinit. PID 1 links nothing of it.
func companionVerb(name, summary string) Verb { return companionOf("hinit-"+name, nil, name, summary) }

// toolsProgram has the verbs and the tools of s6 that PID 1 need not link.
const toolsProgram = "hinit-tools"

// tool is a verb of hinit-tools. People use it at a keyboard, and PID 1 does not need it.
func tool(name, summary string) Verb {
	return companionOf(toolsProgram, []string{name}, name, summary)
}

// companionOf is a verb of a program with several verbs. The program gets the words in first before the arguments.
func companionOf(program string, first []string, name, summary string) Verb {
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

// ToolByName replaces the process by hinit-tools, which also runs the tools of s6 and the agent's gateway commands. On failure it
// returns the exit code that s6's tools have for a failed system call.
func ToolByName(argv []string) int {
	_, err := execBeside(toolsProgram, argv)
	fmt.Fprintf(os.Stderr, "%s: fatal: cannot run hinit-tools: %v; install it beside hinit\n", filepath.Base(argv[0]), err)
	return 111
}

// execBeside replaces the process by a program that is installed beside this one. It returns only on failure, with the program's
// path.
func execBeside(program string, argv []string) (path string, err error) {
	if path, err = cmdline.Beside(program); err != nil {
		return path, err
	}
	return path, &fs.PathError{Op: "exec", Path: path, Err: unix.Exec(path, argv, os.Environ())}
}
