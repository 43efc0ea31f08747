package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/proc"
	"hinit/internal/procusage"
)

const (
	// diskTime limits the measurement of all homes together. They are measured in random order, so that every home is measured
	// from time to time even if the time is short.
	diskTime = 30 * time.Second
	// homeTime limits the measurement of one home, and again the search for open files of its profile.
	homeTime = 5 * time.Second
	// mostFiles is how many files of one profile are counted at most.
	mostFiles = 1 << 21
	// leastFile is the least size, in bytes, that is counted for a file, because each file also takes an inode.
	leastFile = 4096
	// maxDepth is how deep directories are searched. Programs that use paths can't create deeper ones.
	maxDepth = 1000
)

// diskUsage is the disk usage of one profile, while it is measured and afterwards.
type diskUsage struct {
	timedOut func() bool
	bytes    uint64
	files    int
	part     bool            // the sum is incomplete: the time or the limit of files was reached
	linked   map[uint64]bool // inodes already counted that could appear again: files with several hard links, or without a name
}

// measureDisk measures the disk usage of profiles and compares it with their quotas.
func measureDisk(ctx context.Context, o Options, list []boot.Gateway) (found []boot.Measurement) {
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 19) // a profile could slow others down by having many files
	ctx, cancel := context.WithTimeout(ctx, diskTime)
	defer cancel()
	homes, err := fsutil.OpenDir(o.Home+"/"+boot.ProfilesDir, fsutil.Self())
	if err != nil {
		return nil
	}
	defer homes.Close()
	temporary, err := fsutil.OpenDir(os.TempDir(), fsutil.Self())
	if err != nil {
		return nil
	}
	defer temporary.Close()
	unnamed := unnamedFiles(list)
	for _, i := range rand.Perm(len(list)) {
		end := time.Now().Add(homeTime)
		w, s := list[i], &diskUsage{linked: make(map[uint64]bool), timedOut: func() bool { return ctx.Err() != nil || time.Now().After(end) }}
		info, err := homes.Lstat(w.Profile)
		if err != nil {
			continue // the profile has no home
		}
		home := info.Sys().(*syscall.Stat_t)
		if own, is := fileSystemUsage(o.Home, w.Profile); is {
			s.bytes = own
		} else {
			s.addDir(homes, w.Profile, 0)
			end = time.Now().Add(homeTime) // so that a home with many files leaves time to find its open files
			unnamed(s, w, home)
		}
		name := fmt.Sprintf("hinit-%s-%d", w.Profile, home.Uid)
		if info, err := temporary.Lstat(name); err == nil && w.Isolated && fsutil.UID(info) == home.Uid {
			s.addDir(temporary, name, 0)
		}
		found = append(found, s.checkQuota(w))
	}
	return found
}

// checkQuota compares the usage with the quota of the gateway's profile. The result has a reason to stop the gateway, a warning,
// or neither.
func (s *diskUsage) checkQuota(w boot.Gateway) boot.Measurement {
	has := config.Bytes(s.bytes &^ (1<<20 - 1)).Text()
	if s.part {
		has = "at least " + has
	}
	out := boot.Measurement{Service: w.Service}
	switch {
	case w.Stop > 0 && s.bytes >= w.Stop, w.Stopped && s.part:
		out.Hold = fmt.Sprintf("disk: its files have %s, and quota.stop is %s; it starts when it has less, or until the next look by: hinit start %s",
			has, config.Bytes(w.Stop).Text(), w.Profile)
	case w.Warn > 0 && s.bytes >= w.Warn:
		out.Note = fmt.Sprintf("disk: its files have %s, and quota.warn is %s", has, config.Bytes(w.Warn).Text())
	}
	return out
}

// fileSystemUsage returns the disk usage of a profile's home by statfs(2). data is the data directory. The second result is false
// unless the home is a file system of its own or has a project quota: otherwise statfs describes the whole volume.
func fileSystemUsage(data, profile string) (bytes uint64, is bool) {
	var all, own unix.Statfs_t
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(unix.AT_FDCWD, data+"/"+boot.ProfilesDir+"/"+profile, &how)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	if errors.Join(unix.Statfs(data, &all), unix.Fstatfs(fd, &own)) != nil || all.Blocks == own.Blocks {
		return 0, false
	}
	return (own.Blocks - own.Bfree) * uint64(own.Bsize), true
}

// addDir adds the directory name with everything in it to the usage. It follows no link and enters no other mount.
func (s *diskUsage) addDir(in *fsutil.Dir, name string, depth int) {
	d, err := in.SubSame(name)
	if err != nil || depth > maxDepth {
		s.part = s.part || !errors.Is(err, fsutil.ErrMount) && !errors.Is(err, fs.ErrNotExist)
		return
	}
	defer d.Close()
	var names, dirs []string
	_ = d.EachName("", func(name string, kind fs.FileMode) bool {
		if kind.IsDir() {
			dirs = append(dirs, name)
		} else {
			names = append(names, name)
		}
		s.files++
		return s.files < mostFiles
	})
	s.part = s.part || s.files >= mostFiles
	s.bytes += leastFile
	for i, name := range names {
		if i%256 == 0 && s.timedOut() {
			s.part = true
			return
		}
		if info, err := d.Lstat(name); err == nil {
			s.addFile(info.Sys().(*syscall.Stat_t))
		}
	}
	for _, name := range dirs {
		if s.part = s.part || s.timedOut(); s.part {
			return
		}
		s.addDir(d, name, depth+1)
	}
}

// addFile adds a file to the usage. A file with several hard links is added only once.
func (s *diskUsage) addFile(st *syscall.Stat_t) {
	if st.Nlink > 1 {
		if s.linked[st.Ino] {
			return
		}
		s.linked[st.Ino] = true
	}
	s.bytes += max(leastFile, uint64(st.Blocks)*512)
}

// unnamedFiles prepares the search for deleted files that processes of profiles still have open, because these files take space
// too. It returns a function that adds the files of one profile to s.
func unnamedFiles(list []boot.Gateway) func(s *diskUsage, w boot.Gateway, home *syscall.Stat_t) {
	roots := proc.ServiceRoots{Init: os.Getppid(), Mains: make(map[int]string)}
	for _, w := range list {
		roots.Mains[w.Main] = w.Service
	}
	all, _ := procusage.Read("/proc", nil) // without /proc, nothing is found
	owners := roots.Owners(all)
	return func(s *diskUsage, w boot.Gateway, home *syscall.Stat_t) {
		// Act as the profile's user: the kernel shows a user its own processes' files.
		_ = fsutil.NewActor(fsutil.Identity{UID: home.Uid, GID: home.Gid}).Do(func() error {
			for pid := range all {
				if owners[pid] != w.Main || w.Main == 0 {
					continue
				}
				if s.timedOut() { // a profile may have very many files open
					s.part = true
					break
				}
				fds := "/proc/" + strconv.Itoa(pid) + "/fd/"
				names, _ := os.ReadDir(fds)
				for _, name := range names {
					var st unix.Stat_t
					if unix.Stat(fds+name.Name(), &st) == nil && st.Nlink == 0 && st.Dev == home.Dev && st.Mode&unix.S_IFMT == unix.S_IFREG && !s.linked[st.Ino] {
						s.linked[st.Ino] = true // a process may have it open twice
						s.bytes += uint64(st.Blocks) * 512
					}
				}
			}
			return nil
		})
	}
}
