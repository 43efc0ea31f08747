package volume

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/procstat"
)

// allHomesTimeout limits the measurement of all homes together, homeTimeout the measurement of one home and the search for a
// profile's open files. The order of the homes is random, so that each home is measured at some time even if allHomesTimeout is
// too short for all. Tests raise both.
var allHomesTimeout, homeTimeout = 30 * time.Second, 5 * time.Second

const (
	// maxFiles is the maximum number of files that are counted in one profile. A profile with more files has exceeded its
	// quota. Otherwise an agent could hide large files behind many hard links, which count once.
	maxFiles = 1 << 21
	// maxNameBytes is the maximum size in bytes of the file names in memory during the measurement of a profile. A name counts
	// with its length plus nameOverhead. A profile with more names has exceeded its quota. Otherwise one agent could make the
	// measurement of all profiles fail.
	maxNameBytes, nameOverhead = 32 << 20, 32
	// maxTempDirs is the maximum number of additional directories for temporary files. An agent can create any number of them.
	maxTempDirs = 10_000
	// minFileUsage is the least disk usage of a file, in bytes. A smaller file counts as minFileUsage, because each file also
	// takes an inode.
	minFileUsage = 4096
	// maxDepth is the maximum depth of directories that are searched, because each level needs an open descriptor. A profile
	// with deeper directories has exceeded its quota.
	maxDepth = 1000
)

// diskUsage is the disk usage of one profile. During a measurement it has the sum so far.
type diskUsage struct {
	deadline      time.Time // end of the time for this home
	bytes         uint64
	files         int
	nameBytes     int            // bytes of the names that are in memory
	incomplete    bool           // a limit of time, files or depth was reached, so the sum is too small
	hidesFiles    bool           // a process forbids the examination of its open files, or has files in the queue of a socket
	sockets       int            // number of open sockets
	ports         int            // number of sockets that may have a port: all but Unix sockets
	exceededLimit string         // the exceeded limit (maxFiles, maxNameBytes or maxDepth) in words; "" for none
	countedInodes map[inode]bool // counted files that the search could find again: files with several hard links, and deleted files
}

type inode struct{ device, number uint64 }

// measureDisk measures the disk usage of profiles and compares it with their quotas. It sends each result at once, so that a
// failed measurement delays no result of another profile.
func measureDisk(ctx context.Context, o Options, list []boot.Gateway, send func(boot.Message)) {
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 19)
	last := time.Now().Add(allHomesTimeout)
	limit := func() time.Time { return time.Now().Add(min(homeTimeout, time.Until(last))) }
	homes, err := fsutil.OpenDir(o.Home+"/"+boot.ProfilesDir, fsutil.ProcessActor())
	temporary, tempErr := fsutil.OpenDir(os.TempDir(), fsutil.ProcessActor())
	if errors.Join(err, tempErr) != nil {
		return
	}
	defer homes.Close()
	defer temporary.Close()
	// The directories for temporary files of all profiles. The search takes at most half of the time. After an error, only the
	// usual directories count.
	var temps []string
	_ = temporary.EachName("", func(name string, kind fs.FileMode) bool {
		if kind.IsDir() && strings.HasPrefix(name, "hinit-") {
			temps = append(temps, name)
		}
		return len(temps) < maxTempDirs && time.Now().Before(last.Add(-allHomesTimeout/2))
	})
	var scratch unix.Stat_t
	_ = unix.Stat(os.TempDir(), &scratch)
	processes, _ := gatewayProcesses(o, list)
	for _, i := range rand.Perm(len(list)) {
		w, s := list[i], &diskUsage{countedInodes: make(map[inode]bool), deadline: limit()}
		info, err := homes.Lstat(w.Profile)
		if err != nil {
			continue
		}
		send(boot.Message{Examining: &boot.Examining{Check: w.Profile}})
		home, devices := fsutil.Stat(info), map[uint64]bool{scratch.Dev: w.Isolated}
		if own, is := fileSystemUsage(o.Home, w.Profile); is {
			s.bytes = own
		} else {
			s.addDir(homes, w.Profile, 0)
			devices[home.Dev] = true
		}
		usual := fmt.Sprintf("hinit-%s-%d", w.Profile, home.Uid)
		for i, name := range append([]string{usual}, temps...) { // a name may end in a random number, see package confine
			if w.Isolated && (i == 0 || strings.HasPrefix(name, usual+"-")) {
				if info, err := temporary.Lstat(name); err == nil && fsutil.UID(info) == home.Uid {
					s.addDir(temporary, name, 0)
				}
			}
		}
		s.deadline = limit() // the search for open files has its own time limit, so that a home with many files does not use it up
		s.addDeletedFiles(ctx, "/proc/", processes[w.Service], devices)
		send(boot.Message{Measurements: []boot.Measurement{s.checkQuota(w)}})
	}
}

// checkQuota compares the usage with the quota of the gateway's profile. The result has a reason to stop the gateway, a warning,
// or neither.
func (s *diskUsage) checkQuota(w boot.Gateway) boot.Measurement {
	has := config.Bytes(s.bytes &^ (1<<20 - 1)).Text()
	if s.incomplete {
		has = "at least " + has + s.exceededLimit
	}
	out := boot.Measurement{Service: w.Service}
	switch {
	case w.Stop > 0 && (s.bytes >= w.Stop || s.exceededLimit != ""), w.Stopped && s.incomplete:
		out.Hold = fmt.Sprintf("disk: its files have %s, and quota.stop is %s; it starts when it has less, or until the next look by: hinit start %s",
			has, config.Bytes(w.Stop).Text(), w.Profile)
	case w.Warn > 0 && (s.bytes >= w.Warn || s.exceededLimit != ""):
		out.Note = fmt.Sprintf("disk: its files have %s, and quota.warn is %s", has, config.Bytes(w.Warn).Text())
	}
	return out
}

// fileSystemUsage returns the disk usage of a profile's home by statfs(2). The second result is false if statfs reports the
// usage of the whole volume. Only a home with its own file system or project quota has its own numbers. data is the data
// directory.
func fileSystemUsage(data, profile string) (bytes uint64, is bool) {
	var all, own unix.Statfs_t
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(unix.AT_FDCWD, data+"/"+boot.ProfilesDir+"/"+profile, &how)
	defer unix.Close(fd)
	if errors.Join(err, unix.Statfs(data, &all), unix.Fstatfs(fd, &own)) != nil || all.Blocks == own.Blocks {
		return 0, false
	}
	return (own.Blocks - own.Bfree) * uint64(own.Bsize), true
}

// addDir adds the directory name and all files in it to the usage. It follows no link and enters no other mount. The order of
// names is random, so that repeated measurements with too little time count different files.
func (s *diskUsage) addDir(in *fsutil.Dir, name string, depth int) {
	if depth > maxDepth {
		s.incomplete, s.exceededLimit = true, fmt.Sprintf(" and what lies below %d directories", maxDepth)
		return
	}
	d, err := in.OpenSubdirSameMount(name)
	if err != nil {
		s.incomplete = s.incomplete || !errors.Is(err, fsutil.ErrMount) && !errors.Is(err, fs.ErrNotExist)
		return
	}
	defer d.Close()
	var names []string // a directory has a slash at the end of its name
	before := s.nameBytes
	defer func() { s.nameBytes = before }()
	err = d.EachName("", func(name string, kind fs.FileMode) bool {
		if kind.IsDir() {
			name += "/"
		}
		names = append(names, name)
		s.files, s.nameBytes = s.files+1, s.nameBytes+len(name)+nameOverhead
		return s.files < maxFiles && s.nameBytes < maxNameBytes
	})
	switch s.incomplete = s.incomplete || err != nil; {
	case s.files >= maxFiles:
		s.incomplete, s.exceededLimit = true, fmt.Sprintf(" and more than %d files", maxFiles-1)
	case s.nameBytes >= maxNameBytes:
		s.incomplete, s.exceededLimit = true, " and a directory with too many names"
	}
	if info, err := d.Lstat(""); err == nil {
		s.bytes += diskSpace(fsutil.Stat(info))
	}
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names {
		if s.exceededLimit != "" || time.Now().After(s.deadline) {
			s.incomplete = true
			return
		}
		if dir, is := strings.CutSuffix(name, "/"); is {
			s.addDir(d, dir, depth+1)
		} else if info, err := d.Lstat(name); err == nil {
			s.addFile(info.Sys().(*syscall.Stat_t))
		}
	}
}

// addFile adds a file to the usage. A file with several hard links is added once.
func (s *diskUsage) addFile(st *syscall.Stat_t) {
	if st.Nlink > 1 {
		if s.countedInodes[inode{st.Dev, st.Ino}] {
			return
		}
		s.countedInodes[inode{st.Dev, st.Ino}] = true
	}
	s.bytes += diskSpace(st)
}

// diskSpace returns the disk usage of a file in bytes, but at least minFileUsage.
func diskSpace(st *syscall.Stat_t) uint64 { return max(minFileUsage, uint64(st.Blocks)*512) }

// addDeletedFiles adds the deleted files that processes of a profile still have open or mapped, because these files still take
// space. Only files on the file systems in devices count.
func (s *diskUsage) addDeletedFiles(ctx context.Context, proc string, processes []int, devices map[uint64]bool) {
	open := &diskUsage{countedInodes: s.countedInodes, deadline: s.deadline} // the limits of a home with many files must not end the search for open files
	_ = open.eachProcess(proc, processes, func(dir string) {
		open.addOpenDeleted(dir+"/fd/", func(_ string, device uint64) bool { return devices[device] })
	})
	s.bytes, s.incomplete = s.bytes+open.bytes, s.incomplete || open.incomplete
	mapped := make(map[inode]uint64) // sizes of mapped files, as far as the mappings show them
	if s.eachProcessUntilEnd(ctx, proc, processes, func(ctx context.Context, dir string) { addMappedDeleted(ctx, dir+"/maps", devices, mapped) }) != nil {
		s.incomplete = true
		return
	}
	for file, size := range mapped {
		if !s.countedInodes[file] {
			s.bytes += size
		}
	}
}

// eachProcess calls each with the directory below proc of each process. After s.deadline it stops, and marks s as incomplete.
// During a call, this thread acts as the user of the process, because the kernel shows files and memory of a process only to
// its user. eachProcess returns an error if it can't act as a user.
func (s *diskUsage) eachProcess(proc string, processes []int, each func(dir string)) (err error) {
	for _, pid := range processes {
		status := procstat.ReadStatus(strconv.Itoa(pid))
		uid, alive := status.Number("Uid", 10)
		gid, _ := status.Number("Gid", 10)
		if alive && time.Now().Before(s.deadline) {
			user := fsutil.NewActor(fsutil.Identity{UID: uint32(uid), GID: uint32(gid)})
			err = errors.Join(err, user.Do(func() error { each(proc + strconv.Itoa(pid)); return nil }))
		}
	}
	s.incomplete = s.incomplete || time.Now().After(s.deadline)
	return err
}

// eachProcessUntilEnd calls eachProcess, but returns at s.deadline at the latest. A process can keep its memory locked, and
// then the kernel blocks each reader of its mappings. each may still be called after an error.
func (s *diskUsage) eachProcessUntilEnd(ctx context.Context, proc string, processes []int, each func(ctx context.Context, dir string)) error {
	ctx, cancel := context.WithDeadline(ctx, s.deadline)
	defer cancel()
	// f may continue after the end of this method, so it does not change s
	return blocking.Wait(ctx, "the search for mapped files", func() error {
		return errors.Join((&diskUsage{deadline: s.deadline}).eachProcess(proc, processes, func(dir string) { each(ctx, dir) }), ctx.Err())
	})
}

// addOpenDeleted adds the deleted files that a process has open, by its directory fd below /proc. A file counts if counts
// returns true for its device. An agent may have any number of files open, so addOpenDeleted ends at s.deadline, or after
// maxFiles.
func (s *diskUsage) addOpenDeleted(dir string, counts func(file string, device uint64) bool) {
	d, err := os.Open(dir)
	if err != nil {
		s.hidesFiles = s.hidesFiles || errors.Is(err, fs.ErrPermission)
		return
	}
	defer d.Close()
	for names, err := []string(nil), error(nil); err == nil; {
		names, err = d.Readdirnames(256)
		for _, name := range names {
			s.incomplete = s.files >= maxFiles || time.Now().After(s.deadline)
			if s.incomplete {
				return
			}
			var st unix.Stat_t
			err := unix.Stat(dir+name, &st)
			if err == nil && st.Mode&unix.S_IFMT == unix.S_IFSOCK { // files may wait in the queue of a socket (SCM_RIGHTS, unix(7))
				text, _ := os.ReadFile(strings.TrimSuffix(dir, "fd/") + "fdinfo/" + name)
				queued, local := procstat.Status(text).Number("scm_fds", 10) // only a Unix socket has this line
				s.sockets, s.hidesFiles = s.sockets+1, s.hidesFiles || queued > 0
				if !local {
					s.ports++
				}
			}
			if err == nil && st.Nlink == 0 && st.Mode&unix.S_IFMT == unix.S_IFREG && counts(dir+name, st.Dev) && !s.countedInodes[inode{st.Dev, st.Ino}] {
				s.countedInodes[inode{st.Dev, st.Ino}] = true // a process may have the file open twice
				s.bytes += uint64(st.Blocks) * 512
				s.files++
			}
		}
	}
}

// deletedSuffix is the end of a line of /proc/PID/maps about a deleted file.
const deletedSuffix = " (deleted)"

// addMappedDeleted adds to mapped the deleted files in a file maps below /proc (proc_pid_maps(5)). Only a privileged process
// learns the size of such a file, so the end of its last mapping counts as its size.
func addMappedDeleted(ctx context.Context, maps string, devices map[uint64]bool, mapped map[inode]uint64) {
	f, err := os.Open(maps)
	if err != nil {
		return
	}
	defer f.Close()
	var part []byte
	for lines, more := bufio.NewReader(f), false; err == nil && ctx.Err() == nil; {
		part, more, err = lines.ReadLine()
		head, tail := string(part), string(part)
		for more && err == nil { // the agent chooses the length of the path, so keep only the beginning and the end of the line
			part, more, err = lines.ReadLine()
			tail = tail[max(0, len(tail)-len(deletedSuffix)):] + string(part)
		}
		if !strings.HasSuffix(tail, deletedSuffix) {
			continue
		}
		var first, end, offset, number uint64
		var rights string
		var major, minor uint32
		n, _ := fmt.Sscanf(head, "%x-%x %s %x %x:%x %d", &first, &end, &rights, &offset, &major, &minor, &number)
		if file := (inode{unix.Mkdev(major, minor), number}); n == 7 && devices[file.device] {
			mapped[file] = max(mapped[file], offset+end-first)
		}
	}
}
