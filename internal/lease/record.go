package lease

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Holder is an init that has the lease, or wants it.
type Holder struct {
	Boot      string    `json:"boot"` // of this life of the init; a re-execution goes on with it
	Host      string    `json:"host"`
	PID       int       `json:"pid"` // in its own namespace
	Since     time.Time `json:"since"`
	Machine   string    `json:"machine"`   // the life of the kernel
	Container string    `json:"container"` // the same for each start of one container, and no other's; "" when it can't be told
	PIDSpace  uint64    `json:"pid_space"`
	Started   string    `json:"started"` // by the kernel's count, to tell processes of one number apart
}

// record is what the file says.
type record struct {
	Version   int    `json:"version"`
	Epoch     uint64 `json:"epoch"`     // counts the holders
	Beat      uint64 `json:"beat"`      // counts the renewals
	Heartbeat bool   `json:"heartbeat"` // the holder has no lock that would tell of its death
	Released  bool   `json:"released"`
	Holder
}

const (
	recordVersion = 1
	// size is that of a record in the file: always the same, so that one can be written over another.
	size = 1024
	// most is the size of a file that can be a record.
	most = 4096
	// lastEpoch bounds what a file can make the next epoch be.
	lastEpoch = 1 << 52
)

func (r record) encode() []byte {
	text, _ := json.Marshal(r) // it has nothing that can't be encoded
	for len(text) < size-1 {
		text = append(text, ' ')
	}
	return append(text, '\n')
}

// parse returns what a file says, and false when that makes no sense. Anybody can have written it.
func parse(raw []byte) (r record, ok bool) {
	if err := json.Unmarshal(raw, &r); err != nil || r.Version != recordVersion || r.Epoch == 0 || r.Epoch > lastEpoch {
		return record{}, false
	}
	for _, s := range []*string{&r.Boot, &r.Host, &r.Machine, &r.Container, &r.Started} {
		*s = plain(*s)
	}
	return r, true
}

// plain makes a word of another's fit to be shown.
func plain(s string) string {
	s = strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return -1
		}
		return r
	}, s)
	return s[:min(len(s), 64)]
}

// String says who it is, for people.
func (h Holder) String() string {
	if h.Boot == "" {
		return "an unknown holder"
	}
	return fmt.Sprintf("%s/%s", h.Host, h.Boot)
}

// Self describes this process. What it can't find out stays empty.
func Self() Holder {
	var life [6]byte
	_, _ = rand.Read(life[:]) // it does not fail
	h := Holder{Boot: hex.EncodeToString(life[:]), PID: os.Getpid(), Since: time.Now().UTC().Truncate(time.Millisecond)}
	h.Host, _ = os.Hostname()
	h.Host = plain(h.Host)
	machine, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	h.Machine = plain(string(machine))
	if info, err := os.Stat("/proc/self/ns/pid"); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			h.PIDSpace = st.Ino
		}
	}
	h.Started = startOf(h.PID)
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	h.Container = containerOf(h, mounts)
	return h
}

// containerOf names the container by what its engine gives to it alone and for all its starts: the directory of its own layer and
// the file that is mounted on /etc/hostname (proc(5), mountinfo). Host names and machines are not enough: two containers may be
// called the same.
func containerOf(h Holder, mounts []byte) string {
	var own []string
	for line := range bytes.Lines(mounts) {
		fields := strings.Fields(string(line))
		sep := slices.Index(fields, "-")
		if sep < 5 || len(fields) < sep+4 {
			continue
		}
		switch fields[4] {
		case "/":
			for option := range strings.SplitSeq(fields[sep+3], ",") {
				if strings.HasPrefix(option, "upperdir=") {
					own = append(own, option)
				}
			}
		case "/etc/hostname":
			own = append(own, "hostname="+fields[3])
		}
	}
	if len(own) == 0 || h.Machine == "" || h.PIDSpace == 0 {
		return ""
	}
	slices.Sort(own)
	sum := sha256.Sum256([]byte(strings.Join(append(own, h.Host, h.Machine), "\x00")))
	return hex.EncodeToString(sum[:8])
}

// startOf returns when a process was started, in ticks of the kernel (proc(5), stat), "" when there is none.
func startOf(pid int) string {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" {
		return ""
	}
	return fields[19]
}

// outlived reports whether a holder was an earlier life of this container, so that nothing of it is alive.
func (h Holder) outlived(old Holder, startOf func(pid int) string) bool {
	if h.Container == "" || old.Container != h.Container || old.Machine != h.Machine || old.Boot == h.Boot || old.PIDSpace == 0 {
		return false
	}
	if old.PIDSpace == h.PIDSpace { // both see the same processes
		return old.Started == "" || startOf(old.PID) != old.Started
	}
	return true // a container has one namespace at a time
}
