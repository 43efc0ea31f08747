package proc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"hinit/internal/dotenv"
	"hinit/internal/trust"
)

// Setup is what a process sets about itself before it executes the command, besides resource limits. The zero value sets nothing.
// The program behind LimitsName carries it out, and reads the files of variables as the command's user.
type Setup struct {
	Nice       int      // added to hinit's nice value
	IOClass    int      // class of ioprio_set(2); 0 keeps hinit's
	IOLevel    int      // level within the class; 0 is served first
	CPUs       string   // a list such as 0-3,6 (cpuset(7)); "" keeps hinit's
	Umask      string   // octal; "" keeps hinit's
	NoNewPrivs bool     // neither it nor its children gain privileges by executing a program
	EnvFiles   []string // absolute paths of files of variables, each after a "-" if it may be missing, or after NAME= if it is one value
	Keep       []string // variables that EnvFiles must not change
	OwnFiles   bool     // refuse EnvFiles that anyone but root and the command's user can change; root always refuses them
	Cgroup     string   // directory of a control group to make and enter as root, "" for none
	Caps       []string // limits of that group, each as VALUE:FILE
	NoLinks    bool     // refuse EnvFiles that are reached by a link of a user other than root
}

// The values of [Setup].IOClass, as in ioprio_set(2).
const (
	IORealtime = 1 + iota
	IOBestEffort
	IOIdle
)

// maxCPU is the highest number of a processor.
const maxCPU = 1023

// variableLetters are the characters allowed in a variable name that comes from a file name.
const variableLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"

// maxEnvFile limits the size of a file of variables: an environment can hardly be larger (execve(2)).
const maxEnvFile = 1 << 20

// none reports whether there is nothing to set.
func (s *Setup) none() bool { return s.same(&Setup{}) }

func (s *Setup) same(o *Setup) bool {
	return s.Nice == o.Nice && s.IOClass == o.IOClass && s.IOLevel == o.IOLevel && s.CPUs == o.CPUs && s.Umask == o.Umask &&
		s.NoNewPrivs == o.NoNewPrivs && slices.Equal(s.EnvFiles, o.EnvFiles) && slices.Equal(s.Keep, o.Keep) && s.OwnFiles == o.OwnFiles && s.NoLinks == o.NoLinks &&
		s.Cgroup == o.Cgroup && slices.Equal(s.Caps, o.Caps)
}

// Words by which the program behind LimitsName is told what to set.
const (
	wordNice  = "nice="
	wordIO    = "io="
	wordCPUs  = "cpus="
	wordUmask = "umask="
	wordNNP   = "no_new_privs="
	wordEnv   = "env="
	wordKeep  = "keep="
	wordUser  = "user="
	wordDir   = "dir="
	wordBound = "bound="
	wordOwn   = "own_files="
	wordLinks = "no_links="
	wordGroup = "cgroup="
	wordPut   = "put="
)

// words returns the steps for the program behind LimitsName, in order.
func (s Spec) words() (words []string) {
	own := &s.Setup
	add := func(is bool, word, value string) {
		if is {
			words = append(words, word+value)
		}
	}
	add(own.Nice != 0, wordNice, strconv.Itoa(own.Nice))
	add(own.IOClass != 0, wordIO, strconv.Itoa(own.IOClass)+":"+strconv.Itoa(own.IOLevel))
	add(own.CPUs != "", wordCPUs, own.CPUs)
	add(own.Umask != "", wordUmask, own.Umask)
	if own.Cgroup != "" {
		words = append(words, wordGroup+own.Cgroup)
		for _, limit := range own.Caps {
			value, file, _ := strings.Cut(limit, ":")
			words = append(words, wordPut+value+":"+own.Cgroup+"/"+file)
		}
		words = append(words, wordPut+"0:"+own.Cgroup+"/cgroup.procs") // 0 is the process that writes it
	}
	if s.becomes() {
		user := []string{strconv.FormatUint(uint64(s.Cred.UID), 10), strconv.FormatUint(uint64(s.Cred.GID), 10)}
		for _, g := range s.Cred.Groups {
			user = append(user, strconv.FormatUint(uint64(g), 10))
		}
		words = append(words, wordUser+strings.Join(user, ":"))
		add(s.laterDir(), wordDir, s.Dir)
		add(s.Bound, wordBound, strconv.Itoa(os.Getpid()))
	}
	for _, f := range own.EnvFiles {
		words = append(words, wordEnv+f)
	}
	if len(own.EnvFiles) > 0 {
		for _, k := range own.Keep {
			words = append(words, wordKeep+k)
		}
	}
	add(len(own.EnvFiles) > 0 && own.OwnFiles, wordOwn, "1")
	add(len(own.EnvFiles) > 0 && own.NoLinks, wordLinks, "1")
	add(own.NoNewPrivs, wordNNP, "1")
	return words
}

// limited reports whether the process must execute the program behind LimitsName first.
func (s Spec) limited() bool { return len(s.Limits) > 0 || !s.Setup.none() || s.becomes() }

// becomes reports whether the process changes its user. It does that after it has executed this program again, never between fork
// and execve, because Spawn waits until execve. The other user could stop its own process (SIGSTOP), or delay it by a lease on
// its files (fcntl(2), F_SETLEASE).
func (s Spec) becomes() bool { return s.Cred != nil && int(s.Cred.UID) != os.Geteuid() }

// laterDir reports whether the process enters its directory after the change of its user. It enters a pinned directory earlier,
// before the descriptor is closed; that involves no path lookup. A path below /proc/self that another user chose must not be used
// earlier, because it would lead to this process's own files.
func (s Spec) laterDir() bool { return s.becomes() && filepath.IsAbs(s.Dir) && !s.Pinned }

// privileged reports whether a setting needs a privilege.
func (s *Setup) privileged() bool { return s.Nice < 0 || s.IOClass == IORealtime }

// checkSetup returns settings that would fail after the fork, where the error would be visible in the log only.
func checkSetup(s *Setup) error {
	if s.CPUs != "" {
		var own unix.CPUSet
		want, err := parseCPUs(s.CPUs)
		if err == nil && unix.SchedGetaffinity(0, &own) == nil {
			err = fmt.Errorf("there is none of them here, hinit has %d processors; name others, or start the container with --cpuset-cpus %s", own.Count(), s.CPUs)
			for cpu := range maxCPU + 1 {
				if want.IsSet(cpu) && own.IsSet(cpu) {
					err = nil
					break
				}
			}
		}
		if err != nil {
			return &SpawnError{Limit: true, What: "cpu_affinity to " + s.CPUs, Err: err}
		}
	}
	if s.privileged() && !capable(unix.CAP_SYS_NICE) && !capable(unix.CAP_SYS_ADMIN) {
		what, less := "nice to "+strconv.Itoa(s.Nice), "0 or more"
		if s.Nice >= 0 {
			what, less = "ionice to realtime", "best-effort"
		}
		return &SpawnError{Limit: true, What: what, Err: fmt.Errorf("hinit lacks the capability; set %s, or start the container with --cap-add SYS_NICE", less)}
	}
	return nil
}

// capable reports whether this process has a capability (capabilities(7)).
func capable(capability int) bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<capability) != 0
}

// apply carries out one word on the calling thread, which executes the command later.
func (p *pending) apply(word string) error {
	name, value, _ := strings.Cut(word, "=")
	var err error
	switch name + "=" {
	case "=": // internal/entry has carried it out
	case wordNice:
		var n int
		if n, err = strconv.Atoi(value); err == nil {
			own, _ := unix.Getpriority(unix.PRIO_PROCESS, 0) // the system call returns 20 minus the nice value
			err = unix.Setpriority(unix.PRIO_PROCESS, 0, max(-20, min(20-own+n, 19)))
		}
	case wordIO:
		var class, level int
		if _, err = fmt.Sscanf(value, "%d:%d", &class, &level); err == nil {
			const whoProcess, classShift = 1, 13
			if _, _, errno := unix.RawSyscall(unix.SYS_IOPRIO_SET, whoProcess, 0, uintptr(class<<classShift|level)); errno != 0 {
				err = errno
			}
		}
	case wordCPUs:
		var set *unix.CPUSet
		if set, err = parseCPUs(value); err == nil {
			err = unix.SchedSetaffinity(0, set)
		}
	case wordUmask:
		var mask uint64
		if mask, err = strconv.ParseUint(value, 8, 9); err == nil {
			unix.Umask(int(mask))
		}
	case wordGroup:
		_ = os.Remove(value) // an empty group is made anew, so its counters start at 0
		if err = os.Mkdir(value, 0o755); errors.Is(err, os.ErrExist) {
			err = nil
		}
	case wordPut:
		text, file, _ := strings.Cut(value, ":")
		err = putInto(file, text)
	case wordUser:
		err = become(value)
	case wordDir:
		if err = unix.Chdir(value); err != nil {
			return &SpawnError{What: value, Err: err, Dir: true}
		}
	case wordBound:
		err = bind(value)
	case wordEnv:
		p.files = append(p.files, value)
		return nil
	case wordKeep:
		p.keep = append(p.keep, value)
		return nil
	case wordOwn:
		p.judge.own = true
		return nil
	case wordLinks:
		p.judge.noLinks = true
		return nil
	case wordNNP:
		p.noNewPrivs = true
		return nil
	default:
		err = errors.New("it means nothing to this version")
	}
	if err != nil {
		return fmt.Errorf("cannot set %s to %s: %w", name, value, err)
	}
	return nil
}

// pending collects the settings that are applied after all words are read.
type pending struct {
	files, keep []string
	judge       envJudge
	noNewPrivs  bool
}

// become changes the user of this process. words are the uid, the gid and the supplementary groups, separated by colons.
func become(words string) error {
	var ids []int
	for word := range strings.SplitSeq(words, ":") {
		id, err := strconv.ParseUint(word, 10, 31)
		if err != nil {
			return err
		}
		ids = append(ids, int(id))
	}
	if len(ids) < 2 {
		return errors.New("a group is missing")
	}
	if err := syscall.Setgroups(ids[2:]); err != nil {
		return err
	}
	if err := syscall.Setgid(ids[1]); err != nil {
		return err
	}
	return syscall.Setuid(ids[0])
}

// bind makes the kernel kill this process when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG). A later change of
// the user would undo that.
func bind(parent string) error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return err
	}
	if strconv.Itoa(os.Getppid()) != parent {
		return errors.New("the process that started it has ended")
	}
	return nil
}

// environ adds the variables from p's files to env. Variables in p.keep and the tag of the run don't change.
func environ(env []string, p *pending) ([]string, error) {
	keep := append(slices.Clone(p.keep), TagVar)
	set := make(map[string]string)
	for _, file := range p.files {
		path, optional := strings.CutPrefix(file, "-")
		name, value, single := strings.Cut(path, "=/")
		single = single && !strings.Contains(name, "/")
		var vars []dotenv.Var
		var err error
		if single {
			path = "/" + value
			vars, err = oneVariable(name, path, p.judge)
		} else {
			vars, err = variablesOf(path, p.judge)
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
	return SetEnv(env, set), nil
}

// variablesOf returns the variables of a file. In a directory, such as a mounted Secret, each file is a variable with the name of
// the file. Files whose names can't be variable names are left out.
func variablesOf(path string, judge envJudge) ([]dotenv.Var, error) {
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		text, err := readEnvFile(path, judge)
		return dotenv.Parse(text), err
	}
	doubt, err := trust.Look(path, judge.of())
	if err = errors.Join(err, judge.disbelief(doubt)); err != nil {
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
		one, err := oneVariable(e.Name(), filepath.Join(path, e.Name()), judge)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.Name(), err)
		}
		vars = append(vars, one...)
	}
	return vars, nil
}

// oneVariable returns the variable whose value is a file, without the newlines at its end.
func oneVariable(name, path string, judge envJudge) ([]dotenv.Var, error) {
	text, err := readEnvFile(path, judge)
	return []dotenv.Var{{Name: name, Raw: strings.TrimRight(text, "\r\n")}}, err
}

// readEnvFile reads a file of variables with the identity of this process. Root, or any user with judge.own, refuses a file that
// another user can change: LD_PRELOAD in it would execute that user's code.
func readEnvFile(path string, judge envJudge) (string, error) {
	fd, doubt, err := trust.Open(filepath.Clean(path), judge.of())
	if err != nil {
		return "", err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	if err := judge.disbelief(doubt); err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxEnvFile+1))
	if err == nil && len(text) > maxEnvFile {
		err = fmt.Errorf("it has more than %d bytes", maxEnvFile)
	}
	return string(text), err
}

// envJudge says which files of variables to refuse, see [Setup].
type envJudge struct{ own, noLinks bool }

// of returns the check of package trust for this process's user.
func (j envJudge) of() trust.Judge {
	switch uid := os.Geteuid(); {
	case j.own || uid == 0:
		return trust.OwnedBy(uint32(uid))
	case j.noLinks:
		return trust.RootOnly
	}
	return nil
}

func (j envJudge) disbelief(doubt *trust.Doubt) error {
	linksOnly := j.noLinks && !j.own && os.Geteuid() != 0
	switch {
	case doubt == nil, linksOnly && !doubt.Link:
		return nil
	case linksOnly:
		return fmt.Errorf("a link leads to it, and others than root can change %s; put the file itself there", doubt.Path)
	}
	return fmt.Errorf("uid %d can't believe it: %s, or keep the file where only root can write", os.Geteuid(), doubt)
}

// parseCPUs parses a list of processors such as 0-3,6.
func parseCPUs(list string) (*unix.CPUSet, error) {
	var set unix.CPUSet
	for part := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			to = from
		}
		first, err := strconv.ParseUint(from, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("%q is no processor", part)
		}
		last, err := strconv.ParseUint(to, 10, 16)
		if err != nil || last < first || last > maxCPU {
			return nil, fmt.Errorf("%q is no range of processors", part)
		}
		for cpu := first; cpu <= last; cpu++ {
			set.Set(int(cpu))
		}
	}
	return &set, nil
}
