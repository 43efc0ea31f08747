package dockercli

import (
	"fmt"
	"io"
	"strings"
)

// UnhandledError means that the personality does not handle a command line. The real docker command may know it.
type UnhandledError struct{ Reason string }

func (e *UnhandledError) Error() string {
	return e.Reason + " is none of those that hinit answers in the place of docker"
}

// UsageError means that the docker command would refuse the line too.
type UsageError struct {
	command command
	reason  string
	code    int
}

func (e *UsageError) Error() string { return e.reason }

// RefusedError means that a command line asks for more than a sandbox, mostly for root on the host. Allow is the word that
// permits it, or "".
type RefusedError struct{ What, Allow string }

func (e *RefusedError) Error() string {
	if e.Allow == "" {
		return e.What + " is not allowed in a sandbox"
	}
	return e.What + " is not allowed in a sandbox; whoever runs hinit can permit it with HINIT_SANDBOX_ALLOW=" + e.Allow
}

// PrintError prints an error of [Parse] as the docker command does, and returns the exit code. If a service decides (served), the
// message names no word for HINIT_SANDBOX_ALLOW, because the service ignores that variable.
func PrintError(out io.Writer, err error, served bool) (code int) {
	switch e := err.(type) { //nolint:errorlint // they are never wrapped
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
