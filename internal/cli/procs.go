package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"hinit/internal/redact"
)

// process is one process as /proc shows it.
type process struct {
	pid, ppid, session int
	state              string
	uid                uint32
	ticks              uint64 // of cpu time
	memory             uint64 // resident, in bytes
	command            string // for people: secrets are masked
	mark               uint64 // the limit that the processes of a run share (internal/proc); 0 when it is not known
}

// processes reads the process table. What ends meanwhile is left out.
func processes() map[int]process {
	all := make(map[int]process)
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		if p, ok := readProcess(dir); ok {
			all[p.pid] = p
		}
	}
	return all
}

func readProcess(dir string) (p process, ok bool) {
	stat, err := os.ReadFile(dir + "/stat")
	status, gone := os.ReadFile(dir + "/status")
	end := bytes.LastIndexByte(stat, ')')
	if err != nil || gone != nil || end < 0 {
		return p, false
	}
	f := strings.Fields(string(stat[end+1:]))
	const state, ppid, session, utime, stime = 0, 1, 3, 11, 12 // fields of proc_pid_stat(5), the third one there being the first
	if len(f) <= stime {
		return p, false
	}
	p.pid, err = strconv.Atoi(filepath.Base(dir))
	p.state = f[state]
	p.ppid, _ = strconv.Atoi(f[ppid])
	p.session, _ = strconv.Atoi(f[session])
	for _, at := range []int{utime, stime} {
		n, _ := strconv.ParseUint(f[at], 10, 64)
		p.ticks += n
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		words := strings.Fields(value)
		if len(words) == 0 {
			continue
		}
		switch name {
		case "Uid":
			n, _ := strconv.ParseUint(words[0], 10, 32)
			p.uid = uint32(n)
		case "VmRSS":
			n, _ := strconv.ParseUint(words[0], 10, 64)
			p.memory = n << 10
		}
	}
	limits, _ := os.ReadFile(dir + "/limits")
	p.mark = markIn(string(limits))
	argv, _ := os.ReadFile(dir + "/cmdline")
	p.command = maskedCommand(strings.Split(strings.TrimRight(string(argv), "\x00"), "\x00"))
	if len(argv) == 0 {
		if begin := bytes.IndexByte(stat, '('); begin >= 0 { // a process that has ended, or a thread of the kernel
			p.command = "[" + string(stat[begin+1:end]) + "]"
		}
	}
	return p, err == nil
}

// markIn finds the mark of a run in the text of /proc/PID/limits.
func markIn(limits string) uint64 {
	_, rest, _ := strings.Cut(limits, "Max realtime timeout")
	words := strings.Fields(rest)
	if len(words) < 2 {
		return 0
	}
	n, _ := strconv.ParseUint(words[1], 10, 64)
	return n
}

// maskedCommand is a command line without its secrets: the values of flags and variables whose names say so, passwords in URLs, and tokens of
// known shapes.
func maskedCommand(argv []string) string {
	var masker redact.Masker
	words := make([]string, len(argv))
	secretNext := false
	for i, word := range argv {
		name, value, assigns := strings.Cut(word, "=")
		secret := redact.Name(strings.ReplaceAll(strings.TrimLeft(name, "-"), "-", "_"))
		switch {
		case secretNext && !strings.HasPrefix(word, "-"):
			word = redact.Hidden
		case assigns && secret && !strings.ContainsAny(name, " \t\n"):
			word = name + "=" + redact.Hidden
		case assigns:
			word = name + "=" + redact.Value("", value)
		default:
			word = redact.Value("", word)
		}
		secretNext = !assigns && secret && strings.HasPrefix(name, "--")
		words[i] = string(masker.Hide([]byte(word), nil))
	}
	return strings.Join(words, " ")
}
