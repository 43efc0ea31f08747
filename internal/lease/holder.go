package lease

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/procstat"
)

const (
	// holderFile is the file in which the holder of the lock describes itself. The agent can write to this file, so hinit only
	// displays it.
	holderFile    = DirName + "/holder"
	maxHolderFile = 1024
	maxWordLen    = 64
)

// Holder describes the process that holds the lock. It is only for messages.
type Holder struct {
	// Host and Since come from the file holderFile of the last hinit with the lock. With a lease of a cluster, the lease names
	// Host, and Since is the present time. Host is "" if unknown.
	Host  string    `json:"host"`
	Since time.Time `json:"since"`
	// PID is a process of this container that holds the lock according to the kernel, and that is no hinit; 0 if unknown.
	// Command is its name.
	PID     int    `json:"-"`
	Command string `json:"-"`
	// Lease means that Host holds the lease, as the lease program has reported.
	Lease bool `json:"-"`
}

// String describes the holder in a message.
func (h Holder) String() string {
	switch {
	case h.PID != 0:
		return fmt.Sprintf("process %d (%s) of this container, which is no hinit; end that process", h.PID, h.Command)
	case h.Host == "":
		return "another process"
	case h.Lease:
		return "another hinit, by its lease " + h.Host
	}
	return fmt.Sprintf("another hinit, by its note %s since %s", h.Host, h.Since.UTC().Format(time.RFC3339))
}

// lockIdentity returns the identity of a directory in the notation of /proc/locks.
func lockIdentity(dir *os.File) string {
	var st unix.Stat_t
	_ = unix.Fstat(int(dir.Fd()), &st) // after an error the inode is 0, which no file has
	return fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
}

// holder describes the process that holds the lock. at identifies the locked directory, see lockIdentity. holder does not wait
// for the volume. It uses the last content of the holder file, and starts a goroutine that reads the file for the next call.
func (v *Volume) holder(at string) Holder {
	h := *v.lastHolder.Load()
	if v.readingHolder.CompareAndSwap(false, true) {
		guard.Go("reading who holds the lock of the volume", func() {
			_ = v.withDir(v.readHolderFile) // if the directory can't be opened, lastHolder does not change
			v.readingHolder.Store(false)
		})
	}
	_ = blocking.Do(blocking.ShortCalls, func() error { h.PID, h.Command = findOtherHolder(at, os.Geteuid()); return nil })
	return h
}

// findOtherHolder returns a process of this container that has locked the directory at (see lockIdentity), and its name. It
// skips processes of root and of the user with the uid own, which may be other hinits. pid is 0 without such a process.
func findOtherHolder(at string, own int) (pid int, command string) {
	_ = procstat.EachLock(func(kind string, holder int, file string) { // after an error the result may miss a process
		if kind != "FLOCK" || file != at || pid != 0 {
			return
		}
		status := procstat.ReadStatus(strconv.Itoa(holder))
		// skip other hinits, which run as this user, or as root if they are PID 1
		if uid, known := status.Number("Uid", 10); known && uid != 0 && uid != uint64(own) {
			pid, command = holder, printable(strings.Join(status.Fields("Name"), " "))
		}
	})
	return pid, command
}

// readHolderFile reads the holder file, in which the last holder describes itself, into v.lastHolder. After an error
// v.lastHolder is empty.
func (v *Volume) readHolderFile(d *fsutil.Dir) error {
	var h Holder
	raw, err := d.ReadFile(holderFile, maxHolderFile)
	if err != nil || json.Unmarshal(raw, &h) != nil {
		h = Holder{}
	}
	h.Host = printable(h.Host)
	v.lastHolder.Store(&h)
	return err
}

// writeHolderFile writes to the holder file that this machine holds the lock.
func (v *Volume) writeHolderFile() {
	host, _ := os.Hostname()
	raw, _ := json.Marshal(Holder{Host: host, Since: time.Now().UTC().Truncate(time.Second)})
	_ = v.withDir(func(d *fsutil.Dir) error { // an error does not matter, because the holder file is only displayed
		if err := d.Mkdir(DirName, 0o755); err != nil {
			return err
		}
		return d.Replace(holderFile, raw, fsutil.ReplaceOptions{Mode: 0o644, NoSync: true})
	})
}

// printable returns s without characters that are unsafe to display, cut to maxWordLen bytes. The agent may have written s.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return -1
		}
		return r
	}, s)
	return s[:min(len(s), maxWordLen)]
}
