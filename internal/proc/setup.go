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

// Setup is what a process sets about itself before it becomes the command, besides its resource limits. The zero value sets nothing.
// It is applied by the program behind LimitsName, and its files of variables are read as the command's user.
type Setup struct {
	Nice       int      // added to hinit's
	IOClass    int      // of ioprio_set(2), 0 keeps hinit's
	IOLevel    int      // within the class, 0 is the first to be served
	CPUs       string   // a list such as 0-3,6 of cpuset(7), "" keeps hinit's
	Umask      string   // octal, "" keeps hinit's
	NoNewPrivs bool     // it and its children gain no privilege by executing a program
	EnvFiles   []string // absolute paths of files of variables, each after a "-" if it may be missing, or after NAME= if it is one value
	Keep       []string // variables that no file of these changes
	OwnFiles   bool     // EnvFiles that anybody but root and the command's user can change are refused; root always refuses them
	Cgroup     string   // directory of a control group that it makes and enters as root, "" for none
	Caps       []string // limits of that group: VALUE:FILE
	NoLinks    bool     // EnvFiles that a link of another user than root leads to are refused
}

// The classes of [Setup].IOClass.
const (
	IORealtime = 1 + iota
	IOBestEffort
	IOIdle
)

// maxCPU is the highest number of a processor.
const maxCPU = 1023

// variableLetters may be in the name of a variable that a file of a directory sets.
const variableLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"

// maxEnvFile is how large a file of variables may be: an environment can hardly be larger (execve(2)).
const maxEnvFile = 1 << 20

// none reports whether there is nothing to set.
func (s *Setup) none() bool { return s.same(&Setup{}) }

func (s *Setup) same(o *Setup) bool {
	return s.Nice == o.Nice && s.IOClass == o.IOClass && s.IOLevel == o.IOLevel && s.CPUs == o.CPUs && s.Umask == o.Umask &&
		s.NoNewPrivs == o.NoNewPrivs && slices.Equal(s.EnvFiles, o.EnvFiles) && slices.Equal(s.Keep, o.Keep) && s.OwnFiles == o.OwnFiles && s.NoLinks == o.NoLinks &&
		s.Cgroup == o.Cgroup && slices.Equal(s.Caps, o.Caps)
}

// The words by which a Setup is told to the program that applies it.
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

// words are what the program behind LimitsName does for a spec, in this order.
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

// limited reports whether the process executes this program first, and sets something about itself there.
func (s Spec) limited() bool { return len(s.Limits) > 0 || !s.Setup.none() || s.becomes() }

// becomes reports whether the process changes its user. It does so after it has executed this program again, never between fork
// and execve. Spawn waits until execve, and meanwhile the other user could stop the process (SIGSTOP), or hold its files
// (fcntl(2), F_SETLEASE).
func (s Spec) becomes() bool { return s.Cred != nil && int(s.Cred.UID) != os.Geteuid() }

// laterDir reports whether the process enters its directory as its own user. A pinned one is entered before the descriptor is closed; the
// kernel looks for no name there. A path below /proc/self of somebody else's choice would lead to this process's files before that.
func (s Spec) laterDir() bool { return s.becomes() && filepath.IsAbs(s.Dir) && !s.Pinned }

// privileged reports whether something is to be set that takes a privilege.
func (s *Setup) privileged() bool { return s.Nice < 0 || s.IOClass == IORealtime }

// checkSetup finds what would fail after the fork, where only the log would show it.
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

// apply does what a word says to the calling thread, which is to execute the command.
func (p *pending) apply(word string) error {
	name, value, _ := strings.Cut(word, "=")
	var err error
	switch name + "=" {
	case "=": // internal/entry has carried the word out
	case wordNice:
		var n int
		if n, err = strconv.Atoi(value); err == nil {
			own, _ := unix.Getpriority(unix.PRIO_PROCESS, 0) // the kernel's, 20 less the nice value
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
		_ = os.Remove(value) // one that is empty begins to count anew
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

// pending is what the words say that is done after all of them are read.
type pending struct {
	files, keep []string
	judge       envJudge
	noNewPrivs  bool
}

// become makes this process another user's. The words are its uid, its gid and its groups.
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

// bind has the kernel kill this process when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG). A change of the user ends
// that.
func bind(parent string) error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return err
	}
	if strconv.Itoa(os.Getppid()) != parent {
		return errors.New("the process that started it has ended")
	}
	return nil
}

// environ adds the variables of p's files to env. Those in p.keep stay as they are, and so does the tag of the run.
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

// variablesOf returns the variables of a file. Each file of a directory, such as a mounted Secret, is a variable of the file's name. Files
// that can't have the name of a variable are left out.
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

// readEnvFile reads a file of variables as the user that this process is. Root, and with own any other user, refuses a file that
// another user can change: LD_PRELOAD in it would be that user's command.
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

// envJudge says which files of variables are refused, see [Setup].
type envJudge struct{ own, noLinks bool }

// of doubts a path that another user can change, where this process must not follow another user.
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

// parseCPUs reads a list of processors such as 0-3,6.
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
