package volume

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/proc"
	"hinit/internal/procstat"
	"hinit/profiles"
)

const (
	// memoryFile stores how much memory each gateway uses, in bytes by service. It is trusted only if it belongs to this
	// process's user. The agent can't change it, only remove it.
	memoryFile = ".hinit-memory.json"
	// maxMemoryFile is the maximum number of bytes that are read from memoryFile.
	maxMemoryFile = 1 << 20
	// startMemoryPercent is the percentage of the container's memory that starting gateways may fill together.
	startMemoryPercent = 80
	// manySockets is the number of sockets with which a service may hide memory of the kernel. That many Unix sockets hold about
	// 100 MB. A TCP socket holds some MB, so an eighth of that number may have a port. A browser at rest has 70, of which few have one.
	manySockets = 256
	// searchTime limits the search for shared memory, and maxFilesInMemory the files that are counted for a service.
	searchTime       = 3 * time.Second
	maxFilesInMemory = 1 << 16
)

// recordMemory records how much memory each running gateway in list uses. It keeps the records of gateways that are not in list,
// as long as their profiles exist.
func recordMemory(o Options, list []boot.Gateway) error {
	home, err := fsutil.OpenNoLink(o.Home, fsutil.Self())
	if err != nil {
		return err
	}
	defer home.Close()
	processes, err := gatewayProcesses(o, list)
	if err != nil {
		return err
	}
	used := make(map[string]uint64)
	for service, bytes := range readMemoryRecord(home) {
		if profile, is := profiles.SlotProfile(service); is && home.CheckExists(boot.ProfilesDir+"/"+profile) == nil {
			used[service] = bytes
		}
	}
	for _, w := range list {
		var sum proc.Memory
		for _, pid := range processes[w.Service] {
			sum.Add(proc.ParseMemory(procstat.StatusOf(strconv.Itoa(pid))))
		}
		used[w.Service] = sum.Bytes
	}
	text, _ := json.Marshal(used) // numbers can't fail
	return home.Replace(memoryFile, text, fsutil.ReplaceOptions{Mode: 0o600})
}

// sharedMemory measures the shared memory of each service in list. That is the larger one of two sums. One is the deleted files in memory
// that its processes have open, such as files of memfd_create(2). The other is its part of the memory that they map. A file counts for
// one service only. The search is bounded in time and in the number of files, and each service gets its part of the time. Memory that the search
// misses belongs to no service. If it is more than a quarter of the memory that the container c uses, each service that may hide it
// gets a Note. Files with names are not hidden. If the kernel's own memory is more than a quarter, such as data in sockets, services
// with many sockets get a Note. Services without a result are left out.
func sharedMemory(ctx context.Context, o Options, list []boot.Gateway, c proc.ContainerMemory) (found []boot.Measurement) {
	processes, err := gatewayProcesses(o, list)
	if err != nil {
		return nil
	}
	seen, end, hidden := make(map[inode]bool), time.Now().Add(searchTime), c.Shared
	inMemory := func(file string, _ uint64) bool {
		var st unix.Statfs_t
		return unix.Statfs(file, &st) == nil && st.Type == unix.TMPFS_MAGIC
	}
	for n, i := range rand.Perm(len(list)) {
		s := &diskUsage{linked: seen, files: maxFiles - maxFilesInMemory, end: time.Now().Add(time.Until(end) / time.Duration(len(list)-n))}
		all, mapped, parts := processes[list[i].Service], uint64(0), uint64(0)
		_ = s.visit("/proc/", all, func(dir string) { // if it can't act as a user, the memory belongs to no service
			s.addOpen(dir+"/fd/", inMemory)
			mapped += proc.ParseMemory(procstat.StatusOf(path.Base(dir))).Shared
		})
		if s.wait(ctx, "/proc/", all, func(_ context.Context, dir string) { parts += proportionalShared(dir) }) == nil {
			mapped = parts
		}
		out := boot.Measurement{Service: list[i].Service, Run: list[i].Run, Bytes: max(s.bytes, mapped)}
		if s.incomplete || s.hides || (s.sockets > manySockets || s.ports > manySockets/8) && c.Kernel > c.Used/4 {
			out.Note = "it may hide memory, because hinit cannot examine all that it has open; "
		}
		hidden -= min(hidden, out.Bytes)
		found = append(found, out)
	}
	for _, dir := range []string{"/dev/shm", "/tmp", "/run"} { // a file with a name is not hidden
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil && st.Type == unix.TMPFS_MAGIC {
			hidden -= min(hidden, (st.Blocks-st.Bfree)*uint64(st.Bsize))
		}
	}
	if max(hidden, c.Kernel) <= c.Used/4 {
		for i := range found {
			found[i].Note = ""
		}
	}
	return slices.DeleteFunc(found, func(m boot.Measurement) bool { return m.Bytes == 0 && m.Note == "" })
}

// proportionalShared returns the part of a process in the shared memory that it maps, in bytes (Pss_Shmem, proc_pid_smaps(5)). Processes that
// map the same memory have it in equal parts. If the kernel does not tell that, proportionalShared returns all that the process maps. dir is
// the directory of the process below /proc.
func proportionalShared(dir string) uint64 {
	text, _ := os.ReadFile(dir + "/smaps_rollup")
	if part, ok := procstat.Status(text).Number("Pss_Shmem", 10); ok {
		return part << 10
	}
	return proc.ParseMemory(procstat.StatusOf(path.Base(dir))).Shared
}

// readMemoryRecord returns the record in memoryFile. It returns nil if the file can't be read, or if another user could have
// written it.
func readMemoryRecord(home *fsutil.Dir) (used map[string]uint64) {
	f, err := home.Open(memoryFile)
	if err != nil {
		return nil
	}
	defer f.Close()
	info, err := f.Stat()
	text, _ := io.ReadAll(io.LimitReader(f, maxMemoryFile))
	if err != nil || fsutil.UID(info) != uint32(os.Geteuid()) || info.Mode().Perm()&0o022 != 0 || json.Unmarshal(text, &used) != nil {
		return nil
	}
	return used
}

// admitGateways decides which gateways of list may start with the memory c of the container. It judges by how much memory
// each gateway used before.
func admitGateways(o Options, list []boot.Gateway, c proc.ContainerMemory) (found []boot.Measurement) {
	home, err := fsutil.OpenNoLink(o.Home, fsutil.Self())
	if err != nil {
		return nil
	}
	defer home.Close()
	return reserveMemory(list, readMemoryRecord(home), c)
}

// reserveMemory reserves memory for the gateways in list, the most important first. In the result, a gateway for which nothing is
// left has a reason to wait (Hold). The argument used is the memory in the last record; a gateway without a record needs none. A
// gateway counts for at most half of the memory, so that every gateway can start at some time.
func reserveMemory(list []boot.Gateway, used map[string]uint64, c proc.ContainerMemory) (found []boot.Measurement) {
	most := c.Limit / 100 * startMemoryPercent
	room := most - min(c.Used, most)
	list = slices.SortedStableFunc(slices.Values(list), func(a, b boot.Gateway) int { return cmp.Compare(b.Rank, a.Rank) })
	for _, w := range list {
		out := boot.Measurement{Service: w.Service, Bytes: min(used[w.Service], most/2)}
		if out.Bytes > room {
			out.Hold = fmt.Sprintf("waits for memory: it had %s before, and %s are left for starts; starts when there is room, or by: hinit start %s",
				config.Bytes(used[w.Service]&^(1<<20-1)).Text(), config.Bytes(room&^(1<<20-1)).Text(), w.Profile)
		} else {
			room -= out.Bytes
		}
		found = append(found, out)
	}
	return found
}
