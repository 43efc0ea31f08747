package cli

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"hinit/internal/control/show"
	"hinit/internal/redact"
)

// kernelFiles say what a container is and may do.
var kernelFiles = []string{
	"/proc/version", "/etc/os-release", "/proc/uptime", "/proc/loadavg", "/proc/meminfo", "/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max",
	"/proc/sys/fs/inotify/max_user_instances", "/proc/sys/fs/inotify/max_user_watches", "/proc/sys/vm/overcommit_memory",
	"/proc/self/cgroup", "/proc/self/mountinfo", "/proc/self/uid_map", "/proc/1/status", "/proc/1/limits", "/proc/1/oom_score_adj",
	"/proc/pressure/cpu", "/proc/pressure/memory", "/proc/pressure/io",
	"/sys/fs/cgroup/cgroup.controllers", "/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu.stat", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.high",
	"/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.peak", "/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory.oom.group",
	"/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids.current", "/sys/fs/cgroup/pids.events",
	"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/pids/pids.max", // version 1
}

// kernelFacts writes those that there are.
func kernelFacts(w io.Writer) error {
	fmt.Fprintf(w, "== this command\nuid %d, gid %d, pid %d\n", os.Geteuid(), os.Getegid(), os.Getpid())
	for _, name := range kernelFiles {
		text, err := os.ReadFile(name)
		if of, one := strings.CutPrefix(name, "/proc/1/"); one {
			text, err = ofProcessOne(of)
		}
		if err != nil {
			continue
		}
		fmt.Fprintf(w, "\n== %s\n%s\n", name, strings.TrimRight(string(text), "\n"))
	}
	return nil
}

var errForeign = errors.New("process 1 is in another container")

// ofProcessOne reads a file of process 1, if that is in this container: with the host's processes in sight it is the host's.
func ofProcessOne(file string) ([]byte, error) {
	for _, same := range []string{"ns/mnt", "ns/pid"} {
		one, err := os.Readlink("/proc/1/" + same)
		own, ownErr := os.Readlink("/proc/self/" + same)
		if err == nil && ownErr == nil && one != own {
			return nil, errForeign
		}
	}
	if one, own := cgroupOf("1"), cgroupOf("self"); one != own && strings.Contains(one, "/..") {
		return nil, errForeign
	}
	return os.ReadFile("/proc/1/" + file)
}

func cgroupOf(pid string) string {
	text, _ := os.ReadFile("/proc/" + pid + "/cgroup") // "" where there are no cgroups
	return string(text)
}

// environmentFacts writes variables; the values of those whose names say that they are secret are hidden, and those of hide.
func environmentFacts(w io.Writer, hide []string) error {
	one, err := ofProcessOne("environ")
	if err != nil {
		fmt.Fprintf(w, "cannot read that of process 1: %v\n", err)
	}
	for _, from := range []struct {
		title string
		vars  []string
	}{
		{"this command", os.Environ()}, {"process 1", strings.Split(strings.TrimRight(string(one), "\x00"), "\x00")},
	} {
		fmt.Fprintf(w, "== %s\n", from.title)
		slices.Sort(from.vars)
		for _, pair := range from.vars {
			if name, value, ok := strings.Cut(pair, "="); ok {
				if slices.Contains(hide, name) {
					value = redact.Hidden
				}
				fmt.Fprintf(w, "%s=%s\n", show.Line(name), show.Line(redact.Value(name, value)))
			}
		}
	}
	return nil
}

// writeArchive writes a tar.gz of files in one directory. The standard library's package for tar wants os/user, which hinit does not
// link.
func writeArchive(w io.Writer, dir string, files []bundled, at time.Time) error {
	z := gzip.NewWriter(w)
	for _, f := range files {
		if _, err := z.Write(tarHeader(dir+"/"+f.name, len(f.content), at)); err != nil {
			return err
		}
		if _, err := z.Write(append(f.content, make([]byte, -len(f.content)&(tarBlock-1))...)); err != nil {
			return err
		}
	}
	if _, err := z.Write(make([]byte, 2*tarBlock)); err != nil { // the end
		return err
	}
	return z.Close()
}

const tarBlock = 512

// tarHeader is the header of a regular file in the format ustar (POSIX.1-1988). A name has 100 bytes at most; a longer one is cut.
func tarHeader(name string, size int, at time.Time) []byte {
	h := make([]byte, tarBlock)
	put := func(offset int, text string) { copy(h[offset:], text) }
	put(0, name[:min(len(name), 100)])
	put(100, "0000600\x00")
	put(108, "0000000\x00")
	put(116, "0000000\x00")
	put(124, fmt.Sprintf("%011o\x00", size))
	put(136, fmt.Sprintf("%011o\x00", at.Unix()))
	put(148, "        ")
	put(156, "0")
	put(257, "ustar\x0000")
	sum := 0
	for _, c := range h {
		sum += int(c)
	}
	put(148, fmt.Sprintf("%06o\x00 ", sum))
	return h
}
