//go:build faults

package faultinject

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Enabled reports whether this binary can simulate faults.
const Enabled = true

// rulesVar is the environment variable that holds the path of the rules file.
const rulesVar = "HINIT_FAULTS"

// rule is one rule: a line of the rules file.
type rule struct {
	call, name string
	errno      syscall.Errno
	delay      time.Duration
	short      int
	crash      bool
	trace      string
	// Skip: number of matching calls that the rule still ignores; times: number of calls that it still affects, negative for
	// no limit.
	skip, times int
}

// loadedRules holds the rules from the last read of the file. A process has one set of rules, so it is a global variable.
var loadedRules struct {
	sync.Mutex

	file  string
	stamp [3]int64
	rules []*rule
}

// BeforeCall applies the rules before a system call of kind c on name. If it returns an error, the caller must not make the
// call, and must treat the error as the call's error. BeforeCall may also delay the caller.
func BeforeCall(c Call, name string) error {
	var delay time.Duration
	var err error
	for _, r := range match(c, name, func(r *rule) bool { return r.errno != 0 || r.delay != 0 }) {
		if delay += r.delay; r.trace != "" {
			appendLine(r.trace, fmt.Sprintf("%s %s\n", c, name))
		}
		if r.errno != 0 {
			err = r.errno
		}
	}
	wait(delay)
	return err
}

// wait waits for the time d, or until the rules change.
func wait(d time.Duration) {
	loadedRules.Lock()
	defer loadedRules.Unlock()
	stamp := loadedRules.stamp
	for end := time.Now().Add(d); loadedRules.stamp == stamp && time.Now().Before(end); load() {
		loadedRules.Unlock()
		time.Sleep(min(time.Until(end), 10*time.Millisecond)) //nolint:forbidigo // this delay is the effect of the rule
		loadedRules.Lock()
	}
}

// AfterCall applies the rules for a system call of kind c on name. Call it after the call has succeeded. It writes the trace, and
// may end the process as a crash of the machine would.
func AfterCall(c Call, name string) {
	for _, r := range match(c, name, func(r *rule) bool { return r.crash || r.trace != "" }) {
		if r.trace != "" {
			appendLine(r.trace, fmt.Sprintf("%s %s\n", c, name))
		}
		if r.crash {
			// PID 1 can't kill itself with a signal. This system call ends all its threads at once without any cleanup, and the
			// kernel then kills the other processes.
			_, _, _ = syscall.RawSyscall(unix.SYS_EXIT_GROUP, 137, 0, 0)
		}
	}
}

// AllowedBytes returns the number of bytes, at most n, that the caller may write in one write. A rule can reduce it for a short
// write.
func AllowedBytes(c Call, name string, n int) int {
	for _, r := range match(c, name, func(r *rule) bool { return r.short > 0 }) {
		n = min(n, r.short)
	}
	return n
}

func appendLine(file, line string) {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o666)
	if err != nil {
		fmt.Fprintln(os.Stderr, "faultinject:", err)
		return
	}
	_, _ = f.WriteString(line) // ignore the error: the test reads the file and finds the line missing
	_ = f.Close()
}

// match returns the rules for the call c on name for which sort returns true. It counts a use of each of these rules.
func match(c Call, name string, sort func(*rule) bool) []*rule {
	loadedRules.Lock()
	defer loadedRules.Unlock()
	load()
	var out []*rule
	for _, r := range loadedRules.rules {
		if r.call != "*" && r.call != string(c) || r.name != "*" && !strings.Contains(name, r.name) || !sort(r) || r.times == 0 {
			continue
		}
		if r.skip > 0 {
			r.skip--
			continue
		}
		if r.times > 0 {
			r.times--
		}
		out = append(out, r)
	}
	return out
}

// load reads the rules file if it has changed.
func load() {
	if loadedRules.file == "" {
		if loadedRules.file = os.Getenv(rulesVar); loadedRules.file == "" {
			return
		}
	}
	var st unix.Stat_t
	if unix.Stat(loadedRules.file, &st) != nil {
		loadedRules.rules, loadedRules.stamp = nil, [3]int64{}
		return
	}
	stamp := [3]int64{int64(st.Ino), st.Mtim.Nano(), st.Size}
	if stamp == loadedRules.stamp {
		return
	}
	text, err := os.ReadFile(loadedRules.file)
	if err != nil {
		fmt.Fprintln(os.Stderr, "faultinject:", err)
		return
	}
	loadedRules.stamp, loadedRules.rules = stamp, nil
	for line := range strings.Lines(string(text)) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		r, err := parse(strings.Fields(line))
		if err != nil {
			fmt.Fprintf(os.Stderr, "fault: cannot understand the rule %q: %v\n", line, err)
			continue
		}
		loadedRules.rules = append(loadedRules.rules, r)
	}
}

func parse(f []string) (*rule, error) {
	if len(f) < 3 {
		return nil, fmt.Errorf("want a call, a name and an effect")
	}
	r := &rule{call: f[0], name: f[1], times: -1}
	var err error
	for _, word := range f[2:] {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "delay":
			r.delay, err = time.ParseDuration(value)
		case "short":
			r.short, err = strconv.Atoi(value)
		case "crash":
			r.crash = true
		case "trace":
			r.trace = value
		case "skip":
			r.skip, err = strconv.Atoi(value)
		case "times":
			r.times, err = strconv.Atoi(value)
		default:
			if r.errno = errnoOf(key); r.errno == 0 {
				err = fmt.Errorf("no such effect %q", key)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return r, nil
}

// errnoOf returns the system error with the given name, such as ENOSPC, or 0 if no error has that name.
func errnoOf(name string) syscall.Errno {
	for n := syscall.Errno(1); n < 200; n++ {
		if unix.ErrnoName(n) == name {
			return n
		}
	}
	return 0
}
