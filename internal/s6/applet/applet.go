package applet

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"hinit/internal/proc"
)

// The exit codes of s6's tools.
const (
	exitDone     = 0
	exitNo       = 1 // the answer to the tool's question is no
	exitTimeout  = 99
	exitUsage    = 100
	exitNotAlive = 102 // s6-svc: no supervisor is listening
	exitSystem   = 111 // a system call failed
	exitNoExec   = 126
	exitNotFound = 127
)

// Call is one invocation of an applet (one of the tools in this package).
type Call struct {
	Name     string   // the name from argv[0], for messages
	Args     []string // the words after the name; while a tool runs, only the words after its options
	Env      []string
	In       *os.File
	Out, Err io.Writer
	// Dial connects to PID 1.
	Dial func() (Supervisor, error)
	// Root is a prefix for the paths of the image's files. Only tests set it.
	Root string
}

func (c *Call) fatal(code int, text string) int { return c.die(code, "fatal: "+text) }

func (c *Call) warn(text string) { c.die(0, "warning: "+text) }

func (c *Call) die(code int, text string) int {
	_, _ = io.WriteString(c.Err, c.Name+": "+text+"\n") // an error doesn't matter: stderr then has no reader
	return code
}

func (c *Call) print(line string) int {
	if _, err := io.WriteString(c.Out, line+"\n"); err != nil {
		return c.fatal(exitSystem, "unable to write to stdout: "+strerror(err))
	}
	return exitDone
}

// strerror returns the reason of an error as C programs print it: capitalized and without the path.
func strerror(err error) string {
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno):
		if errno == syscall.EBUSY { // Go's text for this error differs from the C library's
			return "Device or resource busy"
		}
		text := errno.Error()
		return strings.ToUpper(text[:1]) + text[1:]
	case errors.Is(err, fs.ErrPermission):
		return "Permission denied"
	case errors.Is(err, fs.ErrNotExist):
		return "No such file or directory"
	}
	return err.Error()
}

const defaultPath = "/usr/bin:/bin"

// become replaces this process by a program that it finds in PATH. It works like execvp(3), but does not use a shell for
// files without a magic number. If it fails, it returns the exit code. The error message begins with who, the name of a
// tool. If s6 executes a chain of tools, who is the last tool of the chain.
func (c *Call) become(who string, argv, env []string) int {
	path, err := proc.LookPath(argv[0], []string{"PATH=" + cmp.Or(proc.Getenv(env, "PATH"), defaultPath)})
	if err == nil {
		err = syscall.Exec(path, argv, env)
	}
	c.Name = who
	code := exitNoExec
	if errors.Is(err, syscall.ENOENT) {
		code = exitNotFound
	}
	return c.fatal(code, "unable to exec "+argv[0]+": "+strerror(err))
}
