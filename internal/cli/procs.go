package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"hinit/internal/proc"
	"hinit/internal/procstat"
	"hinit/internal/redact"
)

// process is one process as /proc shows it.
type process struct {
	procstat.Stat

	uid     uint32
	command string // for people: secrets are masked
	nested  bool   // it lives in another PID namespace, below this one
	mark    uint64 // the limit that the processes of a run share (internal/proc); 0 when it is not known
}

// processes reads the process table. What ends meanwhile is left out.
func processes() map[int]process {
	all := make(map[int]process)
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		if p, ok := readProcess(dir); ok {
			all[p.PID] = p
		}
	}
	return all
}

func readProcess(dir string) (p process, ok bool) {
	stat, err := os.ReadFile(dir + "/stat")
	status, gone := os.ReadFile(dir + "/status")
	p.Stat, ok = procstat.Parse(stat)
	if err != nil || gone != nil || !ok {
		return p, false
	}
	if _, rest, found := strings.Cut(string(status), "\nUid:"); found {
		var uid uint32
		_, _ = fmt.Sscan(rest, &uid)
		p.uid = uid
	}
	if _, rest, found := strings.Cut(string(status), "\nNSpid:"); found {
		numbers, _, _ := strings.Cut(rest, "\n")
		p.nested = len(strings.Fields(numbers)) > 1
	}
	limits, _ := os.ReadFile(dir + "/limits")
	mark, _ := proc.ParseMark(limits, nil)
	p.mark = mark.Limit
	argv, _ := proc.ReadHead(dir + "/cmdline")
	p.command = maskedCommand(strings.Split(strings.TrimRight(string(argv), "\x00"), "\x00"))
	if len(argv) == 0 {
		// a process that has ended, or a thread of the kernel
		p.command = "[" + string(stat[bytes.IndexByte(stat, '(')+1:bytes.LastIndexByte(stat, ')')]) + "]"
	}
	return p, true
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
