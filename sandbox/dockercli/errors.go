package dockercli

import (
	"fmt"
	"io"
	"strings"

	"hinit/internal/proc"
	"hinit/internal/procstat"
)

// UnhandledError means that this package does not emulate a command line. The real docker command may be able to execute it.
type UnhandledError struct{ Reason string }

func (e *UnhandledError) Error() string {
	return "hinit does not support this call (" + e.Reason + ")"
}

// UsageError means that the real docker command would also reject the command line.
type UsageError struct {
	command command
	reason  string
	code    int
}

func (e *UsageError) Error() string { return e.reason }

// RefusedError means that a command line asks for more rights than a sandbox may have. Most of these rights would make it
// root on the host. Allow is the word in HINIT_SANDBOX_ALLOW that would permit it, or "" if none would.
type RefusedError struct{ What, Allow string }

func (e *RefusedError) Error() string {
	if e.Allow == "" {
		return e.What + " is not allowed in a sandbox"
	}
	return e.What + " is not allowed in a sandbox; whoever runs hinit can permit it with HINIT_SANDBOX_ALLOW=" + e.Allow
}

// PrintError prints an error of [Parse] as the docker command does, and returns the exit code. served is true if the sandbox
// service answers the request. The message then does not mention HINIT_SANDBOX_ALLOW, because the service ignores that
// variable.
func PrintError(out io.Writer, err error, served bool) (code int) {
	switch e := err.(type) { //nolint:errorlint // no wrapping occurs here
	case *UsageError:
		verb := "docker " + e.command.name
		usage := strings.TrimSpace(verb + " [OPTIONS] " + e.command.args)
		fmt.Fprintf(out, "%s\n\nUsage:  %s\n\nRun '%s --help' for more information\n", e.reason, usage, verb)
		return e.code
	case *RefusedError:
		if served {
			err = &RefusedError{What: e.What}
		}
		code = exitDaemon
	default:
		code = exitFailed
	}
	fmt.Fprintf(out, "docker: %v\n", err)
	return code
}

// ProcessName returns a name for a process, made of its pid and start time. No other process ever gets this name, even if the
// kernel uses the pid again. ProcessName also returns the pid of the parent.
func ProcessName(pid int) (name string, parent int, err error) {
	s, err := procstat.Read(pid)
	if err != nil {
		return "", 0, fmt.Errorf("cannot look at process %d: %w", pid, err)
	}
	return fmt.Sprintf("%d.%d", pid, s.Start), s.Parent, nil
}

// ProcessIsAlive reports whether the process with a name from [ProcessName] is alive. A zombie is not.
func ProcessIsAlive(name string) bool {
	var pid int
	var start uint64
	_, _ = fmt.Sscanf(name, "%d.%d", &pid, &start) // If the name is invalid, pid stays 0, which no process has.
	now, lives := proc.StartTicks(pid)
	return lives && now == start
}
