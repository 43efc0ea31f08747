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
	// weighTime is how long all homes may take together. They are measured in a random order, so that each one has its turn.
	weighTime = 30 * time.Second
	// homeTime is how long one home may take, and again the open files of its profile.
	homeTime = 5 * time.Second
	// mostWeighed is how many files of a profile are looked at.
	mostWeighed = 1 << 21
	// leastFile is what a file counts at least: it takes an inode.
	leastFile = 4096
	// maxDepth is how deep directories are followed. Programs that use paths can't go deeper.
	maxDepth = 1000
)

// scales add up what a profile has on the disk.
type scales struct {
	late   func() bool
	bytes  uint64
	files  int
	part   bool            // there is more, which was not looked at in time
	linked map[uint64]bool // inodes that could be counted again: of files with several names, or with none
}

// weigh measures what profiles have on the disk, and compares it with their quotas.
func weigh(ctx context.Context, o Options, list []boot.Gateway) (found []boot.Measurement) {
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 19) // a profile could have many files to slow others down
	ctx, cancel := context.WithTimeout(ctx, weighTime)
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
		w, s := list[i], &scales{linked: make(map[uint64]bool), late: func() bool { return ctx.Err() != nil || time.Now().After(end) }}
		info, err := homes.Lstat(w.Profile)
		if err != nil {
			continue // it has none
		}
		home := info.Sys().(*syscall.Stat_t)
		if own, is := ofItsOwn(o.Home, w.Profile); is {
			s.bytes = own
		} else {
			s.dir(homes, w.Profile, 0)
			end = time.Now().Add(homeTime) // many files must not hide open ones
			unnamed(s, w, home)
		}
		name := fmt.Sprintf("hinit-%s-%d", w.Profile, home.Uid)
		if info, err := temporary.Lstat(name); err == nil && w.Isolated && fsutil.UID(info) == home.Uid {
			s.dir(temporary, name, 0)
		}
		found = append(found, s.judge(w))
	}
	return found
}

// judge says what follows from a profile's quota.
func (s *scales) judge(w boot.Gateway) boot.Measurement {
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

// ofItsOwn returns what is used of a home that is a file system of its own, or that has a project quota: statfs(2) tells of that alone.
func ofItsOwn(data, profile string) (bytes uint64, is bool) {
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

// dir adds what is in a directory. It follows no link and enters no other mount.
func (s *scales) dir(in *fsutil.Dir, name string, depth int) {
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
		return s.files < mostWeighed
	})
	s.part = s.part || s.files >= mostWeighed
	s.bytes += leastFile
	for i, name := range names {
		if i%256 == 0 && s.late() {
			s.part = true
			return
		}
		if info, err := d.Lstat(name); err == nil {
			s.add(info.Sys().(*syscall.Stat_t))
		}
	}
	for _, name := range dirs {
		if s.part = s.part || s.late(); s.part {
			return
		}
		s.dir(d, name, depth+1)
	}
}

// add adds a file, once.
func (s *scales) add(st *syscall.Stat_t) {
	if st.Nlink > 1 {
		if s.linked[st.Ino] {
			return
		}
		s.linked[st.Ino] = true
	}
	s.bytes += max(leastFile, uint64(st.Blocks)*512)
}

// unnamedFiles finds files without a name that the processes of profiles have open: they take space too. The function that it returns adds
// the files of one profile.
func unnamedFiles(list []boot.Gateway) func(s *scales, w boot.Gateway, home *syscall.Stat_t) {
	roots := proc.Roots{Init: os.Getppid(), Mains: make(map[int]string)}
	for _, w := range list {
		roots.Mains[w.Main] = w.Service
	}
	all, _ := procusage.Read("/proc", nil) // without /proc nothing is found
	owners := roots.Owners(all)
	return func(s *scales, w boot.Gateway, home *syscall.Stat_t) {
		// The kernel shows a user its own processes.
		_ = fsutil.NewActor(fsutil.Identity{UID: home.Uid, GID: home.Gid}).Do(func() error {
			for pid := range all {
				if owners[pid] != w.Main || w.Main == 0 {
					continue
				}
				if s.late() { // a profile may have very many files open
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
