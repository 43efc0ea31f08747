// Package confine confines the calling process for ever: Landlock restricts its files, ports and signals, and a seccomp
// filter its system calls. It is the code of hinit-isolate. Package isolation defines the arguments with which PID 1 asks for
// it.
//
// If root has saved the rules of the container, confining needs no Go runtime, and the command starts in 0.4 ms. If the kernel
// lacks a part of the isolation, the process exits with an error, unless its arguments allow it to start without that part. The
// package owns no goroutine.
package confine

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"hinit/internal/entry/bare"
	"hinit/internal/isolation"
	"hinit/internal/isolation/ports"
	"hinit/internal/proc"
)

// exitParked is an exit code after which PID 1 parks a gateway until its inputs change or an operator starts it.
const exitParked = 78

// Main confines this process by the plan in argv (see isolation.Argv), and executes the command. With the word "save" it writes
// the rules of the container to a file instead, for later processes. It returns the exit code.
func Main(argv, env []string) int {
	runtime.LockOSThread()          // filter and capabilities belong to one thread, which execve(2) keeps
	if argv[0] == proc.LimitsName { // begin could not carry out all arguments
		hinit := filepath.Join(filepath.Dir(isolation.ProgramPath()), "hinit")
		fmt.Fprintf(os.Stderr, "[hinit] cannot execute %s: %v\n", hinit, unix.Exec(hinit, argv, env))
		return 126
	}
	words := argv[:isolation.WrapperLen(argv)]
	plan := toCStrings(words)
	name := plan.Getenv("name")
	if why := plan.Getenv("refused"); why != "" {
		fmt.Fprintf(os.Stderr, "[hinit] cannot start the gateway of profile %s: %s\n", name, why)
		return exitParked
	}
	err := errors.New("hinit-isolate does not know its arguments; install hinit-isolate in the version of hinit")
	if len(words) > 0 {
		err = buildRules(optionValues(words, "hide"))
	}
	if err == nil {
		err = checkLandlock(isolation.LandlockABI())
		for _, port := range optionValues(words, "port") {
			n, _ := strconv.Atoi(port) // hinit writes only numbers
			err = cmp.Or(err, ports.CheckNotEphemeral(n))
		}
		if err != nil && slices.Contains(words, "degrade") {
			fmt.Fprintf(os.Stderr, "[hinit] %s is not isolated as configured: %v\n", name, err)
			err = nil
		}
	}
	if err == nil && slices.Contains(words, "degrade") && slices.Contains(words, "marked") {
		status, _ := os.ReadFile("/proc/self/status") // if this process can't read the file, neither can PID 1
		err = checkFilterCount(string(status))
	}
	if save := plan.Getenv("save"); err == nil && save != "" {
		return saveRules(save)
	}
	if err == nil {
		path, err := proc.LookPath(argv[len(words)], env)
		if err != nil {
			failed := &proc.SpawnError{Object: argv[len(words)], Err: err}
			fmt.Fprintf(os.Stderr, "[hinit] %v\n", failed)
			return failed.ShellCode()
		}
		confine(path+"\x00", toCStrings(argv), toCStrings(env))
	}
	fmt.Fprintf(os.Stderr, "[hinit] cannot isolate %s: %v\n", name, err)
	return 126
}

// toCStrings returns words in the layout in which the kernel passes them to a program. None contains a NUL, because they come
// from the kernel.
func toCStrings(words []string) bare.CStrings {
	list, _ := syscall.SlicePtrFromStrings(words)
	return bare.CStrings{First: (*uintptr)(unsafe.Pointer(&list[0])), Len: len(words)}
}

func optionValues(words []string, key string) (list []string) {
	for _, word := range words {
		if value, is := strings.CutPrefix(word, key+"="); is {
			list = append(list, value)
		}
	}
	return list
}

// saveRules writes the rules to file, and returns the exit code. It fails if a user other than root can change the directory.
// It replaces the file in one step, so that a reader finds the old rules or the new ones.
func saveRules(file string) int {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(unix.AT_FDCWD, filepath.Dir(file), &how)
	var st unix.Stat_t
	if err == nil && unix.Fstat(fd, &st) == nil && (st.Uid != 0 || st.Mode&0o022 != 0) {
		err = errors.New("another user can change its directory")
	}
	if err == nil {
		dir := fmt.Sprintf("/proc/self/fd/%d/", fd)
		size := uint64(rulesHeaderSize) + ruleHeader.mountsLen + ruleHeader.hiddenLen + ruleHeader.pathsLen + ruleHeader.filterLen
		err = errors.Join(os.WriteFile(dir+"isolation.new", ruleBuffer[:size], 0o644), os.Rename(dir+"isolation.new", dir+filepath.Base(file))) //nolint:gosec // the users of all profiles must be able to read the file
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "[hinit] cannot save the rules of isolated processes, so that each one starts 2 ms later: %v\n", err)
		return 1
	}
	return 0
}

// checkFilterCount returns an error if the kernel does not report the number of filters of system calls in status, the content
// of /proc/self/status. PID 1 recognizes isolated processes by this number. Every kernel with Landlock reports it.
func checkFilterCount(status string) error {
	if !strings.Contains(status, "\nSeccomp_filters:") {
		return errors.New("cannot keep it from the control socket: the kernel does not count filters of system calls (Linux 5.9 does)" +
			"; start the container on a newer kernel, or set isolation.control, or isolation to user")
	}
	return nil
}

// landlockParts lists the parts of Landlock that the isolation needs, each with the version that introduced it (landlock(7)).
var landlockParts = []struct {
	abi  int
	what string
}{{3, "all changes of files"}, {4, "TCP ports"}, {6, "signals and abstract sockets"}}

// checkLandlock returns an error if Landlock of version abi lacks a part that the isolation needs.
func checkLandlock(abi int) error {
	const next = "; start the container on a newer kernel, or set isolation.missing to degrade"
	if abi == 0 {
		return errors.New("the kernel has no Landlock, or the container's seccomp profile forbids it" + next)
	}
	for _, part := range landlockParts {
		if abi < part.abi {
			return fmt.Errorf("the Landlock of this kernel (ABI %d) does not confine %s (ABI %d)%s", abi, part.what, part.abi, next)
		}
	}
	return nil
}
