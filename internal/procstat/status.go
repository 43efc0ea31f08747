package procstat

import (
	"bufio"
	"io"
	"os"
	"strconv"
	"strings"
)

// Status is the content of /proc/PID/status (proc_pid_status(5)); "" if the process is gone.
type Status string

// StatusOf reads the status of a process, given as a PID, "self" or "thread-self". It reads only /proc. PID 1 calls
// StatusOf under the limits of package internal/blocking.
func StatusOf(process string) Status {
	text, _ := os.ReadFile("/proc/" + process + "/status")
	return Status(text)
}

// Fields returns the words of the line with the given name, such as "Uid", or nil if there is no such line.
func (s Status) Fields(name string) []string {
	for line := range strings.Lines(string(s)) {
		if rest, is := strings.CutPrefix(line, name+":"); is {
			return strings.Fields(rest)
		}
	}
	return nil
}

// Number returns the first number of the line with the given name, in the given base. ok is false if the line or the number
// is missing.
func (s Status) Number(name string, base int) (n uint64, ok bool) {
	n, err := strconv.ParseUint(append(s.Fields(name), "")[0], base, 64)
	return n, err == nil
}

// Locks calls the function found for each lock that the kernel lists (proc_locks(5)). kind is the type of the lock, such as
// FLOCK. pid is the process that holds the lock, or -1 if there is none. file is the locked file, as MAJOR:MINOR:INODE.
func Locks(found func(kind string, pid int, file string)) error {
	f, err := os.Open("/proc/locks")
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, 1<<20)) // processes can make this list as long as they like
	for lines.Scan() {                                  // 1: FLOCK  ADVISORY  WRITE 57 00:2f:123 0 EOF
		w := strings.Fields(lines.Text())
		if len(w) > 5 && w[1] != "->" { // "->" marks a process that waits for the lock
			pid, _ := strconv.Atoi(w[4])
			found(w[1], pid, w[5])
		}
	}
	return lines.Err()
}
