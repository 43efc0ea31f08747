package applet

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hinit/internal/account"
	"hinit/internal/fsutil"
	"hinit/internal/proc"
	"hinit/internal/trust"
	"hinit/shim/identity"
)

const containerEnvironment = "/run/s6/container_environment"

// runWithContenv runs a program in the environment of the container, with the caller's PATH if that environment has none. If
// S6_KEEP_ENV is a number other than 0, the program gets the caller's environment instead. If the caller is root, safeRootEnv
// removes unsafe variables.
func runWithContenv(c *Invocation, _ []option) int {
	if strings.Trim(proc.Getenv(c.Env, "S6_KEEP_ENV"), "0") != "" {
		return c.exec(c.Name, c.Args, c.Env)
	}
	var env []string
	if path := proc.Getenv(c.Env, "PATH"); path != "" {
		env = append(env, "PATH="+path)
	}
	env, err := readEnvDir(env, c.RootPrefix+containerEnvironment, envDirRules{wholeFile: true, nullReplacement: '\n'})
	if err != nil {
		return c.fatal(exitSystemError, "unable to envdir "+containerEnvironment+": "+strerror(err))
	}
	if unix.Geteuid() == 0 {
		env = safeRootEnv(env)
	}
	return c.exec(c.Name, c.Args, env)
}

// safeRootEnv returns the variables of env that are safe for root. It removes directories from PATH in which other users can
// write. It also removes variables with paths into the data volume, except HERMES_*, by which scripts find the volume.
func safeRootEnv(env []string) []string {
	volume := filepath.Clean(proc.Getenv(env, "HERMES_HOME"))
	if !filepath.IsAbs(volume) {
		volume = "/opt/data"
	}
	out := make([]string, 0, len(env))
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		switch {
		case name == "PATH":
			dirs := slices.DeleteFunc(filepath.SplitList(value), func(dir string) bool {
				violation, _ := trust.Check(dir, trust.RootOnly)
				return violation != nil || !filepath.IsAbs(dir)
			})
			out = append(out, "PATH="+cmp.Or(strings.Join(dirs, ":"), defaultPath))
		case strings.HasPrefix(name, "HERMES_") || !trust.ContainsPath(value, volume):
			out = append(out, kv)
		}
	}
	return out
}

func runEnvdir(c *Invocation, options []option) int {
	rules, mustExist := envDirRules{nullReplacement: '\n'}, true
	for _, o := range options {
		switch o.letter {
		case 'I':
			mustExist = false
		case 'i':
			mustExist = true
		case 'n':
			rules.keepBlanks = true
		case 'f':
			rules.wholeFile = true
		case 'L': // hinit's version has no limit on the length of values
		case 'c':
			if len(o.value) != 1 {
				return wrongUsage
			}
			rules.nullReplacement = o.value[0]
		}
	}
	env, err := readEnvDir(c.Env, c.Args[0], rules)
	if err != nil && (mustExist || !errors.Is(err, fs.ErrNotExist)) {
		return c.fatal(exitSystemError, "unable to envdir "+c.Args[0]+": "+strerror(err))
	}
	return c.exec(c.Name, c.Args[1:], env)
}

type envDirRules struct {
	wholeFile       bool // read the whole file, not only its first line
	keepBlanks      bool // keep blanks at the end of a line, and the newline at the end of a whole file
	nullReplacement byte // replaces each NUL byte
}

const (
	// maxEnvValue is the maximum length of an environment variable for a new program (MAX_ARG_STRLEN, execve(2)).
	maxEnvValue = 128 << 10
	// Limits for one directory: total size of all values, and number of files. No real environment reaches them.
	maxEnvTotal = 8 << 20
	maxEnvFiles = 64 << 10
)

// readEnvDir returns env, changed by the files in a directory. Each file sets the variable with the file's name, and an empty
// file removes that variable. It ignores files whose name begins with a dot or contains "=". After an error it returns env
// unchanged.
//
// It reads only regular files and the null device, and never blocks. For root, it follows a symbolic link, in the path of dir
// too, only if root alone can write to the link's directory. Otherwise the agent could make root read any file and pass on its
// content.
func readEnvDir(env []string, dir string, rules envDirRules) ([]string, error) {
	at, err := openForRoot(dir)
	if err != nil {
		return env, err
	}
	d := os.NewFile(uintptr(at), dir)
	defer d.Close()
	flags := unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC
	strange, err := othersCanCreate(at)
	if err != nil {
		return env, err
	}
	if strange {
		flags |= unix.O_NOFOLLOW
	}
	entries, err := d.ReadDir(maxEnvFiles + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return env, err
	}
	if len(entries) > maxEnvFiles {
		return env, unix.E2BIG
	}
	set := make(map[string]string, len(entries))
	rest := slices.Clone(env)
	total := 0
	for _, e := range entries {
		name := e.Name()
		if name[0] == '.' || strings.Contains(name, "=") {
			continue
		}
		if e.IsDir() {
			return env, unix.EISDIR
		}
		text, err := readEnvFile(d, name, flags, rules.wholeFile)
		if err != nil {
			return env, fmt.Errorf("%s: %w", name, err)
		}
		if total += len(text); total > maxEnvTotal {
			return env, unix.E2BIG
		}
		if len(text) > 0 {
			set[name] = rules.value(text)
		} else {
			rest = slices.DeleteFunc(rest, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
		}
	}
	return proc.SetEnv(rest, set), nil
}

// readEnvFile reads one file of an environment directory. If whole is true, the file must fit into a variable. Otherwise, only
// the first line must fit.
func readEnvFile(d *os.File, name string, flags int, whole bool) ([]byte, error) {
	fd, err := unix.Openat(int(d.Fd()), name, flags, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	st, err := fsutil.Fstat(fd)
	if err != nil {
		return nil, err
	}
	null := st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(1, 3)
	if st.Mode&unix.S_IFMT != unix.S_IFREG && !null {
		return nil, errors.New("not a regular file")
	}
	if flags&unix.O_NOFOLLOW != 0 && st.Nlink > 1 && !null { // a hard link could lead to another user's file, like a symbolic link
		return nil, errHardLinks
	}
	text, err := io.ReadAll(io.LimitReader(f, maxEnvValue+1))
	if err == nil && len(text) > maxEnvValue && (whole || bytes.IndexByte(text, '\n') < 0) {
		err = unix.E2BIG
	}
	return text, err
}

func (r envDirRules) value(text []byte) string {
	switch {
	case !r.wholeFile:
		text, _, _ = bytes.Cut(text, []byte("\n"))
		if !r.keepBlanks {
			text = bytes.TrimRight(text, " \t")
		}
	case !r.keepBlanks:
		text = bytes.TrimSuffix(text, []byte("\n"))
	}
	return string(bytes.ReplaceAll(text, []byte{0}, []byte{r.nullReplacement}))
}

// runSetuidgid runs a program as another user, given by name or as numbers "uid:gid". The environment stays the same, even HOME
// and USER. Messages are worded as in s6, where s6-setuidgid executes s6-envuidgid and s6-applyuidgid.
func runSetuidgid(c *Invocation, _ []option) int {
	who, argv := c.Args[0], c.Args[1:]
	u, err := account.Lookup(c.RootPrefix, who)
	switch {
	case errors.Is(err, account.ErrNotFound) && strings.Contains(who, ":"):
		return wrongUsage
	case errors.Is(err, account.ErrNotFound), err == nil && !strings.Contains(who, ":") && u.Name != who:
		c.Name = "s6-envuidgid"
		return c.fatal(exitFalse, "unknown user: "+who)
	case err != nil:
		c.Name = "s6-envuidgid"
		return c.fatal(exitSystemError, "unable to get account: "+strerror(err))
	}
	// A new program gets the identity of the thread that calls execve(2), see package identity.
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
		return c.fatal(exitSystemError, environmentError(err)+": "+strerror(err))
	}
	return c.exec("s6-applyuidgid", argv, c.Env)
}

func environmentError(err error) string {
	if refused, ok := errors.AsType[*identity.RefusedError](err); ok {
		switch refused.Step {
		case "setgroups":
			return "unable to set supplementary group list"
		case "setgid":
			return "unable to setgid"
		}
	}
	return "unable to setuid"
}
