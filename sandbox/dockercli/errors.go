package dockercli

import (
	"errors"
	"strings"
)

// OtherError says that a command line is none of those that the personality answers. The real docker command may know it.
type OtherError struct{ Reason string }

func (e *OtherError) Error() string {
	return e.Reason + " is none of those that hinit answers in the place of docker"
}

// UsageError says that the docker command would refuse the line too.
type UsageError struct {
	command command
	reason  string
	code    int
}

func (e *UsageError) Error() string { return e.reason }

// RefusedError says that a command line asks for what would give the command more than a sandbox: root on the host, mostly. Allow is the
// word that permits it, where there is one.
type RefusedError struct{ What, Allow string }

func (e *RefusedError) Error() string {
	if e.Allow == "" {
		return e.What + " is not allowed in a sandbox"
	}
	return e.What + " is not allowed in a sandbox; whoever runs hinit can permit it with HINIT_SANDBOX_ALLOW=" + e.Allow
}

// text is what the docker command prints for it.
func (e *UsageError) text() string {
	verb := "docker " + e.command.name
	return e.reason + "\n\nUsage:  " + strings.TrimSpace(verb+" [OPTIONS] "+e.command.args) + "\n\nRun '" + verb + " --help' for more information\n"
}

// Text is what is printed for an error of [Parse]. Where there is a service, no word permits anything.
func Text(err error, served bool) string {
	if refused := (*RefusedError)(nil); served && errors.As(err, &refused) {
		err = &RefusedError{What: refused.What}
	}
	switch e := err.(type) { //nolint:errorlint // they are never wrapped
	case *UsageError:
		return e.text()
	default:
		return "docker: " + err.Error() + "\n"
	}
}

// Code is the exit code for an error of [Parse].
func Code(err error) int {
	if refused := (*RefusedError)(nil); errors.As(err, &refused) {
		return exitDaemon
	}
	if usage := (*UsageError)(nil); errors.As(err, &usage) {
		return usage.code
	}
	return exitFailed
}

// Named are the variables whose value is the caller's.
func Named(c Call) (names []string) {
	switch c := c.(type) {
	case *Run:
		names = c.Names
	case *Exec:
		for _, e := range c.Env {
			if !strings.Contains(e, "=") {
				names = append(names, e)
			}
		}
	}
	return names
}

// WantsStdin says whether a call reads the caller's standard input.
func WantsStdin(c Call) bool {
	e, is := c.(*Exec)
	return is && e.Stdin
}
