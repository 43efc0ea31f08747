package applet

import (
	"errors"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"hinit/internal/account"
	"hinit/shim/identity"
)

// setuidgid runs a program as another user, given by name or as "uid:gid" in digits. It does not change the environment, not
// even HOME and USER. Its messages are the same as in s6, where this tool is a combination of s6-envuidgid and s6-applyuidgid.
func setuidgid(c *Call, _ []option) int {
	who, argv := c.Args[0], c.Args[1:]
	u, err := account.Lookup(c.Root, who)
	switch {
	case errors.Is(err, account.ErrNotFound) && strings.Contains(who, ":"):
		return wrongUsage
	case errors.Is(err, account.ErrNotFound), err == nil && !strings.Contains(who, ":") && u.Name != who:
		c.Name = "s6-envuidgid"
		return c.fatal(exitNo, "unknown user: "+who)
	case err != nil:
		c.Name = "s6-envuidgid"
		return c.fatal(exitSystem, "unable to get account: "+strerror(err))
	}
	// The program gets the identity of the thread that calls execve(2), which ends all other threads; see package identity.
	runtime.LockOSThread()
	err = nil
	if unix.Geteuid() == 0 && u.UID != 0 {
		err = identity.LeaveTerminal()
	}
	if err == nil {
		err = identity.Become(u)
	}
	if err != nil {
		c.Name = "s6-applyuidgid"
		return c.fatal(exitSystem, couldNot(err)+": "+strerror(err))
	}
	return c.become("s6-applyuidgid", argv, c.Env)
}

func couldNot(err error) string {
	if refused, ok := errors.AsType[*identity.RefusedError](err); ok {
		switch refused.Call {
		case "setgroups":
			return "unable to set supplementary group list"
		case "setgid":
			return "unable to setgid"
		}
	}
	return "unable to setuid"
}
