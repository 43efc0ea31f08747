package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// info is everything that a process inherits from its parent. Tests of a supervisor compare it.
type info struct {
	Argv    []string          `json:"argv"`
	Cwd     string            `json:"cwd"`
	Env     map[string]string `json:"env"`
	UID     int               `json:"uid"`
	EUID    int               `json:"euid"`
	GID     int               `json:"gid"`
	EGID    int               `json:"egid"`
	Groups  []int             `json:"groups"`
	PID     int               `json:"pid"`
	PPID    int               `json:"ppid"`
	PGID    int               `json:"pgid"`
	SID     int               `json:"sid"`
	TTY     tty               `json:"tty"`
	Umask   string            `json:"umask"`
	Home    string            `json:"home"`
	Profile string            `json:"profile"`
}

type tty struct {
	Stdin   bool `json:"stdin"`
	Stdout  bool `json:"stdout"`
	Stderr  bool `json:"stderr"`
	Columns int  `json:"columns"`
	Rows    int  `json:"rows"`
	// Whether this process is in the terminal's foreground process group, to which Ctrl-C sends a
	// signal.
	Foreground bool `json:"foreground"`
}

func cmdInfo(c *call) int {
	about, err := gatherInfo(c)
	if err != nil {
		return c.fail(exitFailed, err)
	}
	data, err := json.Marshal(about)
	if err != nil {
		return c.fail(exitFailed, err)
	}
	if len(c.args) == 1 && c.args[0] == "--json" {
		fmt.Fprintln(c.stdout, string(data))
		return exitOK
	}
	if len(c.args) > 0 {
		return c.fail(exitUsage, fmt.Errorf("agent-info takes no word '%s'", c.args[0]))
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(data, &keys); err != nil {
		return c.fail(exitFailed, err)
	}
	for _, key := range []string{
		"argv", "cwd", "uid", "euid", "gid", "egid", "groups", "pid", "ppid", "pgid", "sid", "tty", "umask", "home", "profile", "env",
	} {
		fmt.Fprintf(c.stdout, "%-8s %s\n", key+":", keys[key])
	}
	return exitOK
}

func gatherInfo(c *call) (info, error) {
	about := info{
		Argv: os.Args, Env: map[string]string{}, Home: c.home.Dir, Profile: c.home.Profile,
		UID: os.Getuid(), EUID: os.Geteuid(), GID: os.Getgid(), EGID: os.Getegid(),
		PID: os.Getpid(), PPID: os.Getppid(), PGID: unix.Getpgrp(), TTY: terminalInfo(c),
	}
	for _, pair := range c.environ {
		key, value, _ := strings.Cut(pair, "=")
		about.Env[key] = value
	}
	var err error
	if about.Cwd, err = os.Getwd(); err != nil {
		return about, fmt.Errorf("cannot find the working directory: %w", err)
	}
	groups, err := os.Getgroups()
	if err != nil {
		return about, fmt.Errorf("cannot read the groups: %w", err)
	}
	about.Groups = append([]int{}, groups...) // Make the list not nil, so that an empty list is [] and not null.
	if about.SID, err = unix.Getsid(0); err != nil {
		return about, fmt.Errorf("cannot read the session: %w", err)
	}
	mask := unix.Umask(0)
	unix.Umask(mask)
	about.Umask = fmt.Sprintf("%04o", mask)
	return about, nil
}

func terminalInfo(c *call) tty {
	t := tty{Stdin: isTerminal(os.Stdin), Stdout: isTerminal(os.Stdout), Stderr: isTerminal(os.Stderr)}
	if size, err := unix.IoctlGetWinsize(int(c.stdin.Fd()), unix.TIOCGWINSZ); err == nil {
		t.Columns, t.Rows = int(size.Col), int(size.Row)
	}
	if group, err := unix.IoctlGetInt(int(c.stdin.Fd()), unix.TIOCGPGRP); err == nil {
		t.Foreground = group == unix.Getpgrp()
	}
	return t
}

func isTerminal(file *os.File) bool {
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}
