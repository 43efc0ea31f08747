// Package limits is the program that a new process executes before its command. The program sets limits and other properties of
// its own process, and then executes the command. PID 1 starts it as [proc.LimitsName], and the words of the command line are
// the settings. Package entry carries out some of the words before the Go runtime starts. The program reads environment files
// as the command's user. The binary of PID 1 does not contain this package. The package owns no goroutine.
package limits

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"hinit/internal/account"
	"hinit/internal/cpulist"
	"hinit/internal/dotenv"
	"hinit/internal/proc"
	"hinit/internal/trust"
	"hinit/shim/identity"
)

// Main is the program behind [proc.LimitsName]: it applies the settings that argv lists, and then executes the command. It
// returns only on failure, with the exit code and the reason.
func Main(argv []string) (int, error) {
	runtime.LockOSThread()
	var limits []proc.Limit
	var later deferredSettings
	i := 1
	for ; i < len(argv) && argv[i] != "--"; i++ {
		if strings.Contains(argv[i], "=") {
			if err := later.apply(argv[i]); err != nil {
				return 126, err
			}
			continue
		}
		var l proc.Limit
		if _, err := fmt.Sscanf(argv[i], "%d:%d:%d", &l.Resource, &l.Soft, &l.Hard); err != nil {
			return 126, fmt.Errorf("cannot read limit %q: %w", argv[i], err)
		}
		limits = append(limits, l)
	}
	if len(argv) < i+3 {
		return 126, proc.ErrNoCommand
	}
	env, err := addFileVariables(os.Environ(), &later)
	if err != nil {
		return 126, err
	}
	for _, l := range limits {
		// unix.Setrlimit also updates the limit in the Go runtime. Otherwise exec would restore the RLIMIT_NOFILE that the
		// runtime saved.
		if err := unix.Setrlimit(l.Resource, &unix.Rlimit{Cur: l.Soft, Max: l.Hard}); err != nil {
			return 126, fmt.Errorf("cannot set the limit %s to %s: %w", proc.LimitName(l.Resource), proc.LimitText(l.Hard), err)
		}
	}
	if later.noNewPrivs {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return 126, fmt.Errorf("cannot set no_new_privs: %w", err)
		}
	}
	path, err := proc.LookPath(argv[i+1], env) // PID 1 has already searched the PATH, except after a slow search
	if err == nil {
		err = syscall.Exec(path, argv[i+2:], env)
	}
	e := &proc.SpawnError{Object: argv[i+1], Err: err}
	return e.ShellCode(), e
}

// apply applies one setting, NAME=VALUE, to the calling thread, which later executes the command.
func (p *deferredSettings) apply(word string) error {
	name, value, _ := strings.Cut(word, "=")
	var err error
	switch name + "=" {
	case "=":
	case proc.WordNice:
		var n int
		if n, err = strconv.Atoi(value); err == nil {
			own, _ := unix.Getpriority(unix.PRIO_PROCESS, 0)
			err = unix.Setpriority(unix.PRIO_PROCESS, 0, max(-20, min(20-own+n, 19)))
		}
	case proc.WordIO:
		var class, level int
		if _, err = fmt.Sscanf(value, "%d:%d", &class, &level); err == nil {
			const whoProcess, classShift = 1, 13
			if _, _, errno := unix.RawSyscall(unix.SYS_IOPRIO_SET, whoProcess, 0, uintptr(class<<classShift|level)); errno != 0 {
				err = errno
			}
		}
	case proc.WordCPUs:
		var set *unix.CPUSet
		if set, err = cpulist.Parse(value); err == nil {
			err = unix.SchedSetaffinity(0, set)
		}
	case proc.WordUmask:
		var mask uint64
		if mask, err = strconv.ParseUint(value, 8, 9); err == nil {
			unix.Umask(int(mask))
		}
	case proc.WordCgroup:
		_ = os.Remove(value) // create the group again below, so that its counters start at 0
		if err = os.Mkdir(value, 0o755); errors.Is(err, os.ErrExist) {
			err = nil
		}
	case proc.WordCgroupWrite:
		text, file, _ := strings.Cut(value, ":")
		err = proc.WriteKernelFile(file, text)
	case proc.WordOOM:
		text, file, _ := strings.Cut(value, ":")
		_ = proc.WriteKernelFile(file, text) // without this value the kernel kills hinit earlier, which must not prevent the start
	case proc.WordUser:
		err = changeUser(value)
	case proc.WordDir:
		if err = unix.Chdir(value); err != nil {
			return &proc.SpawnError{Object: value, Err: err, DirFailed: true}
		}
	case proc.WordDieWithStarter:
		err = dieWithParent(value)
	case proc.WordEnv:
		p.envFiles = append(p.envFiles, value)
	case proc.WordProtectedVars:
		p.protectedVars = append(p.protectedVars, value)
	case proc.WordRefuseForeign:
		p.envRule.refuseForeign = true
	case proc.WordRefuseLinks:
		p.envRule.refuseLinks = true
	case proc.WordNoNewPrivs:
		p.noNewPrivs = true
	default:
		err = errors.New("it means nothing to this version")
	}
	if err != nil {
		return fmt.Errorf("cannot set %s to %s: %w", name, value, err)
	}
	return nil
}

// deferredSettings collects the settings that can be applied only after all words have been read.
type deferredSettings struct {
	envFiles, protectedVars []string
	envRule                 envFileRule
	noNewPrivs              bool
}

// changeUser changes the user of this thread permanently. words holds the uid, the gid and the supplementary groups, separated by
// colons.
func changeUser(words string) error {
	var ids []uint32
	for word := range strings.SplitSeq(words, ":") {
		id, err := strconv.ParseUint(word, 10, 31)
		if err != nil {
			return err
		}
		ids = append(ids, uint32(id))
	}
	if len(ids) < 2 {
		return errors.New("a group is missing")
	}
	return identity.Become(account.User{UID: ids[0], GID: ids[1], Groups: ids[2:]})
}

// dieWithParent makes the kernel kill this process when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG).
// dieWithParent must come after the change of the user, which clears this setting.
func dieWithParent(parent string) error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return err
	}
	if strconv.Itoa(os.Getppid()) != parent {
		return errors.New("the process that started it has ended")
	}
	return nil
}

// addFileVariables adds the variables from the environment files in p to env. It changes neither the variables in p.keep nor
// the tag of the run (proc.TagVar).
func addFileVariables(env []string, p *deferredSettings) ([]string, error) {
	keep := append(slices.Clone(p.protectedVars), proc.TagVar)
	set := make(map[string]string)
	for _, file := range p.envFiles {
		path, optional := strings.CutPrefix(file, "-")
		name, value, single := strings.Cut(path, "=/")
		single = single && !strings.Contains(name, "/")
		var vars []dotenv.Var
		var err error
		if single {
			path = "/" + value
			vars, err = variableFromFile(name, path, p.envRule)
		} else {
			vars, err = readVariables(path, p.envRule)
		}
		switch {
		case single && err != nil:
			return nil, fmt.Errorf("cannot read %s_FILE=%s as uid %d: %w", name, path, os.Geteuid(), err)
		case optional && errors.Is(err, unix.ENOENT):
			continue
		case errors.Is(err, unix.ENOENT):
			return nil, fmt.Errorf("cannot read env_file %s: there is none; write -%s if it may be missing", path, path)
		case err != nil:
			return nil, fmt.Errorf("cannot read env_file %s: %w", path, err)
		}
		for _, v := range vars {
			if value := v.Value(); v.Name != "" && !slices.Contains(keep, v.Name) && !strings.Contains(v.Name+value, "\x00") {
				set[v.Name] = value
			}
		}
	}
	return proc.SetEnv(env, set), nil
}

// variableLetters are the characters allowed in a variable name that comes from a file name.
const variableLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"

// maxEnvFile is the largest environment file that is read, in bytes. The kernel allows hardly more for a whole environment
// (execve(2)).
const maxEnvFile = 1 << 20

// readVariables returns the variables of an environment file. If path is a directory, such as a mounted Secret, each file in it
// is a variable with the name of the file. Files whose names can't be variable names are left out.
func readVariables(path string, rule envFileRule) ([]dotenv.Var, error) {
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		text, err := readEnvFile(path, rule)
		return dotenv.Parse(text), err
	}
	violation, err := trust.Check(path, rule.trustRule())
	if err = errors.Join(err, rule.untrustedError(violation)); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var vars []dotenv.Var
	for _, e := range entries {
		if strings.Trim(e.Name(), variableLetters) != "" {
			continue
		}
		one, err := variableFromFile(e.Name(), filepath.Join(path, e.Name()), rule)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.Name(), err)
		}
		vars = append(vars, one...)
	}
	return vars, nil
}

// variableFromFile returns a variable whose value is the content of a file, without newlines at the end.
func variableFromFile(name, path string, rule envFileRule) ([]dotenv.Var, error) {
	text, err := readEnvFile(path, rule)
	return []dotenv.Var{{Name: name, RawValue: strings.TrimRight(text, "\r\n")}}, err
}

// readEnvFile reads an environment file with the identity of this process. As root, or if rule.refuseForeign is set, it refuses
// a file that another user can change. With LD_PRELOAD in such a file, that user could run code in this process.
func readEnvFile(path string, rule envFileRule) (string, error) {
	fd, violation, err := trust.Open(filepath.Clean(path), rule.trustRule())
	if err != nil {
		return "", err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	if err := rule.untrustedError(violation); err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxEnvFile+1))
	if err == nil && len(text) > maxEnvFile {
		err = fmt.Errorf("it has more than %d bytes", maxEnvFile)
	}
	return string(text), err
}

// envFileRule says which environment files to refuse: refuseForeign stands for RefuseForeignFiles of [proc.Setup], refuseLinks for
// RefuseLinks.
type envFileRule struct{ refuseForeign, refuseLinks bool }

// trustRule returns the check for package trust that applies to this process's user.
func (j envFileRule) trustRule() trust.Rule {
	switch uid := os.Geteuid(); {
	case j.refuseForeign || uid == 0:
		return trust.OwnedBy(uint32(uid))
	case j.refuseLinks:
		return trust.RootOnly
	}
	return nil
}

func (j envFileRule) untrustedError(violation *trust.Violation) error {
	linksOnly := j.refuseLinks && !j.refuseForeign && os.Geteuid() != 0
	switch {
	case violation == nil, linksOnly && !violation.Link:
		return nil
	case linksOnly:
		return fmt.Errorf("a link leads to it, and others than root can change %s; put the file itself there", violation.Path)
	}
	return fmt.Errorf("uid %d can't believe it: %s, or keep the file where only root can write", os.Geteuid(), violation)
}
