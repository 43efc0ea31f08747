package proc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/cpulist"
	"hinit/internal/fsutil"
)

// Setup lists settings that a new process makes for itself before it executes its command, besides resource limits. The zero
// value changes nothing. To make them, the process first executes the program LimitsName (hinit's own binary or hinit-isolate).
// That program also reads the environment files, as the command's user.
type Setup struct {
	Nice          int      // number that is added to the nice value of hinit
	IOClass       int      // class of ioprio_set(2); 0 keeps the class of hinit
	IOLevel       int      // priority within IOClass, 0 to 7; 0 is served first
	CPUs          string   // a list such as 0-3,6 (cpuset(7)); "" keeps the processors of hinit
	Umask         string   // umask in octal; "" keeps the umask of hinit
	NoNewPrivs    bool     // the process and its descendants can't gain privileges by executing a program (PR_SET_NO_NEW_PRIVS)
	EnvFiles      []string // absolute paths; "-" before a path allows a missing file, NAME= before it stores the content in that variable
	ProtectedVars []string `reexec:"Keep"` // variables that EnvFiles must not change
	// whether to refuse EnvFiles that users other than root and the command's user can change; always refused if the user is root
	RefuseForeignFiles bool     `reexec:"OwnFiles"`
	Cgroup             string   // directory of the control group that the process enters; root creates it; "" for none
	CgroupWrites       []string `reexec:"Caps"`    // limits of the control group, each as VALUE:FILE
	RefuseLinks        bool     `reexec:"NoLinks"` // whether to refuse EnvFiles behind a link that a user other than root made
}

// The values of [Setup].IOClass, as in ioprio_set(2).
const (
	IORealtime = 1 + iota
	IOBestEffort
	IOIdle
)

// NiceOf returns the nice value that gives about the same share of the processor as a CPU weight (100 is normal). It is at
// least 0, because negative values need a privilege. Each step of nice reduces the share by a fifth.
func NiceOf(weight int) (nice int) {
	const limit = 19
	for share := float64(weight); share < 90 && nice < limit; share *= 1.25 {
		nice++
	}
	return nice
}

// Words for the command line of LimitsName. Each is followed by its value. Package limits reads them.
const (
	WordNice           = "nice="
	WordIO             = "io="
	WordCPUs           = "cpus="
	WordUmask          = "umask="
	WordNoNewPrivs     = "no_new_privs="
	WordEnv            = "env="
	WordProtectedVars  = "keep="
	WordUser           = "user="
	WordDir            = "dir="
	WordDieWithStarter = "bound="
	WordRefuseForeign  = "own_files="
	WordRefuseLinks    = "no_links="
	WordCgroup         = "cgroup="
	WordCgroupWrite    = "put="
	WordOOM            = "oom=" // like WordCgroupWrite, but a failure is ignored
)

// setupWords returns the command-line words for LimitsName, in the order in which it applies them.
func (s Spec) setupWords() (words []string) {
	own := &s.Setup
	add := func(is bool, word, value string) {
		if is {
			words = append(words, word+value)
		}
	}
	add(own.Nice != 0, WordNice, strconv.Itoa(own.Nice))
	add(own.IOClass != 0, WordIO, strconv.Itoa(own.IOClass)+":"+strconv.Itoa(own.IOLevel))
	add(own.CPUs != "", WordCPUs, own.CPUs)
	add(own.Umask != "", WordUmask, own.Umask)
	if own.Cgroup != "" {
		words = append(words, WordCgroup+own.Cgroup)
		for _, limit := range own.CgroupWrites {
			value, file, _ := strings.Cut(limit, ":")
			words = append(words, WordCgroupWrite+value+":"+own.Cgroup+"/"+file)
		}
		words = append(words, WordCgroupWrite+"0:"+own.Cgroup+"/cgroup.procs")
	}
	if s.changesUser() {
		user := []string{strconv.FormatUint(uint64(s.Cred.UID), 10), strconv.FormatUint(uint64(s.Cred.GID), 10)}
		for _, g := range s.Cred.Groups {
			user = append(user, strconv.FormatUint(uint64(g), 10))
		}
		words = append(words, WordUser+strings.Join(user, ":"))
		add(s.entersDirLater(), WordDir, s.Dir)
		add(s.DiesWithStarter, WordDieWithStarter, strconv.Itoa(os.Getpid()))
	}
	for _, f := range own.EnvFiles {
		words = append(words, WordEnv+f)
	}
	if len(own.EnvFiles) > 0 {
		for _, k := range own.ProtectedVars {
			words = append(words, WordProtectedVars+k)
		}
		add(own.RefuseForeignFiles, WordRefuseForeign, "1")
		add(own.RefuseLinks, WordRefuseLinks, "1")
	}
	add(own.NoNewPrivs, WordNoNewPrivs, "1")
	return words
}

// needsSetup reports whether the new process must first run hinit's binary as LimitsName.
func (s Spec) needsSetup() bool { return len(s.Limits) > 0 || len(s.setupWords()) > 0 }

// changesUser reports whether the new process must change its user. It does that after it has executed hinit's binary, and
// never between fork and execve. Spawn waits until execve, and in between the other user could stop the process with SIGSTOP,
// or block it by a lease on a file (fcntl(2), F_SETLEASE).
func (s Spec) changesUser() bool { return s.Cred != nil && int(s.Cred.UID) != os.Geteuid() }

// entersDirLater reports whether the new process enters its working directory only after the change of its user. Another user
// may have chosen the path: below /proc/self it would lead root to hinit's own files. A pinned directory needs no look-up, and
// must be entered before its descriptor is closed.
func (s Spec) entersDirLater() bool { return s.changesUser() && filepath.IsAbs(s.Dir) && !s.DirIsFD }

// needsPrivilege reports whether a setting needs a privilege.
func (s *Setup) needsPrivilege() bool { return s.Nice < 0 || s.IOClass == IORealtime }

// checkSetup returns an error for settings that can't be made here. A later error would only show in the log of the service.
func checkSetup(s *Setup) error {
	if s.CPUs != "" {
		var own unix.CPUSet
		want, err := cpulist.Parse(s.CPUs)
		if err == nil && unix.SchedGetaffinity(0, &own) == nil {
			err = fmt.Errorf("there is none of them here, hinit has %d processors; name others, or start the container with --cpuset-cpus %s", own.Count(), s.CPUs)
			for cpu := range cpulist.MaxCPU + 1 {
				if want.IsSet(cpu) && own.IsSet(cpu) {
					err = nil
				}
			}
		}
		if err != nil {
			return &SpawnError{LimitFailed: true, Object: "cpu_affinity to " + s.CPUs, Err: err}
		}
	}
	if s.needsPrivilege() && !hasCapability(unix.CAP_SYS_NICE) && !hasCapability(unix.CAP_SYS_ADMIN) {
		what, less := "nice to "+strconv.Itoa(s.Nice), "0 or more"
		if s.Nice >= 0 {
			what, less = "ionice to realtime", "best-effort"
		}
		return &SpawnError{LimitFailed: true, Object: what, Err: fmt.Errorf("hinit lacks the capability; set %s, or give the container SYS_NICE (docker: --cap-add; a pod: securityContext.capabilities.add)", less)}
	}
	return nil
}

// hasCapability reports whether hinit has a capability (capabilities(7)) in its effective set.
func hasCapability(capability int) bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<capability) != 0
}

// IsTerminal reports whether a file is a terminal.
func IsTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// TakeForeground makes hinit's own process group the foreground group of a terminal, after a child had the terminal. It does
// nothing for a terminal of another session.
func TakeForeground(tty *os.File) error {
	var block, old unix.Sigset_t
	block.Val[0] = 1 << (uint(unix.SIGTTOU) - 1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &block, &old); err != nil {
		return fmt.Errorf("cannot block SIGTTOU: %w", err)
	}
	defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil) }()
	if err := unix.IoctlSetPointerInt(int(tty.Fd()), unix.TIOCSPGRP, unix.Getpgrp()); err != nil && !errors.Is(err, unix.ENOTTY) {
		return fmt.Errorf("cannot take the terminal back: %w", err)
	}
	return nil
}

// The functions below find errors before the fork. A later error would only show in the log of the service.

// An agent can make every check of its services' paths slow. All checks together get one checkTimeShare-th of the time, and save
// up at most maxCheckTime. The first millisecond of each check is free. findProgram skips a check if less than minCheckTime is
// left. After a check that exceeds the time left, it skips the checks of this service for slowServicePause.
const checkTimeShare, maxCheckTime, minCheckTime, slowServicePause = 100, time.Second, 10 * time.Millisecond, 10 * time.Minute

// findProgram returns the path of the program to execute, or an error that would otherwise come only after the fork. The links
// in another user's paths may take minutes to follow. So findProgram checks them with that user's permissions, and only for the
// time that is left. After that time, or while an earlier check hangs, it returns the path unchecked, and the new process
// reports errors itself.
func (t *Table) findProgram(spec Spec) (path string, err error) {
	if !spec.changesUser() {
		return checkProgram(spec)
	}
	now := time.Now()
	left := min(now.Sub(t.checkBudgetFrom)/checkTimeShare, maxCheckTime)
	if left < minCheckTime || now.Before(t.slowServices[spec.Name]) || !blocking.HasFreeTurn(blocking.Programs) {
		return cmp.Or(spec.Path, spec.Argv[0]), nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), left)
	defer cancel()
	if t.pathChecker == nil || !t.pathChecker.Identity().Equal(*spec.Cred) {
		// Most services have the same user, and making an actor costs as much as a check.
		t.pathChecker = fsutil.NewActor(*spec.Cred)
	}
	checker, found := t.pathChecker, ""
	err = blocking.Within(ctx, blocking.Programs, "looking at the command", func() error {
		return checker.Do(func() (err error) {
			found, err = checkProgram(spec)
			return err
		})
	})
	t.checkBudgetFrom = now.Add(checkTimeShare * (max(time.Since(now)-time.Millisecond, 0) - left))
	if ctx.Err() != nil {
		maps.DeleteFunc(t.slowServices, func(_ string, until time.Time) bool { return until.Before(now) })
		t.slowServices[spec.Name] = now.Add(slowServicePause)
		return cmp.Or(spec.Path, spec.Argv[0]), nil
	}
	return found, err
}

// checkProgram is the part of findProgram that may block on a file system.
func checkProgram(spec Spec) (path string, err error) {
	path = spec.Path
	if path == "" {
		path, err = LookPath(spec.Argv[0], spec.Env)
		if err != nil {
			return "", &SpawnError{Object: spec.Argv[0], Err: err}
		}
	}
	if spec.needsSetup() {
		err = checkCommand(spec, path)
	}
	return path, err
}

// checkSettings finds settings that the new process could not make. A later error would only show in the log of the service.
func checkSettings(spec Spec) error {
	if err := checkSetup(&spec.Setup); err != nil {
		return err
	}
	for _, l := range spec.Limits {
		var now unix.Rlimit
		mayRaise := (spec.Cred == nil || spec.Cred.UID == 0) && hasCapability(unix.CAP_SYS_RESOURCE) // a process of another user loses the capability
		if mayRaise || unix.Getrlimit(l.Resource, &now) != nil || l.Hard <= now.Max {
			continue
		}
		return &SpawnError{LimitFailed: true, Object: LimitName(l.Resource) + " to " + LimitText(l.Hard), Err: fmt.Errorf(
			"it is %s at most here; set less, or start the container with --ulimit %s=%s", LimitText(now.Max), LimitName(l.Resource), LimitText(l.Hard),
		)}
	}
	return nil
}

// checkCommand returns the error with which the new process would fail to enter its directory or to execute its command.
func checkCommand(spec Spec, path string) error {
	if spec.Dir != "" {
		if err := accessError(spec.Dir, unix.S_IFDIR, spec.Cred); err != nil {
			return &SpawnError{Object: spec.dirName(), Err: err, DirFailed: true}
		}
		if !filepath.IsAbs(path) {
			path = spec.Dir + "/" + path
		}
	}
	if err := accessError(path, unix.S_IFREG, spec.Cred); err != nil {
		return spawnError(spec, path, err)
	}
	return nil
}

// accessError returns an error if this thread can't execute the file at path (kind is S_IFREG), or can't enter the directory
// (S_IFDIR).
func accessError(path string, kind uint32, cred *Cred) error {
	if cred != nil && leadsToDescriptor(path) {
		return nil
	}
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	switch {
	case err != nil:
		return err
	case st.Mode&unix.S_IFMT != kind && kind == unix.S_IFDIR:
		return unix.ENOTDIR
	case st.Mode&unix.S_IFMT != kind:
		return unix.EACCES
	}
	return unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS)
}

// leadsToDescriptor reports whether a path leads through descriptors of a process, as /proc/self/fd/3 or a link to it does.
// hinit can't check such a path, because it would find its own descriptors.
func leadsToDescriptor(path string) bool {
	if strings.HasPrefix(path, "/proc/") {
		return true
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS})
	if err == nil {
		unix.Close(fd)
	}
	return errors.Is(err, unix.ELOOP)
}
