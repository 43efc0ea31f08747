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
	// memoryFile stores how many bytes of memory each gateway used, by service. hinit believes the file only if it belongs to this
	// process's user: the agent can remove it, but not change it.
	memoryFile = ".hinit-memory.json"
	// maxMemoryFile is the number of bytes of memoryFile that are read.
	maxMemoryFile = 1 << 20
	// startMemoryPercent is the percentage of the container's memory that starting gateways may fill together.
	startMemoryPercent = 80
	// manySockets is the number of open sockets above which a service may hide much kernel memory. 256 Unix sockets hold about
	// 100 MB. TCP sockets hold more: for sockets that may have ports, the limit is an eighth of this number. An idle browser
	// has 70 sockets, few of them with ports.
	manySockets = 256
	// sharedMemorySearchTimeout limits the duration of the search for shared memory. maxFilesInMemory limits the number of files
	// that it counts for one service.
	sharedMemorySearchTimeout = 3 * time.Second
	maxFilesInMemory          = 1 << 16
)

// recordMemory stores how much memory each running gateway in list uses, for the next boot. Records of other gateways stay as long
// as their profiles exist.
func recordMemory(o Options, list []boot.Gateway) error {
	home, err := fsutil.OpenNoLink(o.Home, fsutil.ProcessActor())
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
			sum.Add(proc.ParseMemory(procstat.ReadStatus(strconv.Itoa(pid))))
		}
		used[w.Service] = sum.Bytes
	}
	text, _ := json.Marshal(used)
	return home.Replace(memoryFile, text, fsutil.ReplaceOptions{Mode: 0o600})
}

// sharedMemory measures the shared memory of each service in list: the larger of two sums. The first sum is the size of the
// deleted files in memory that the service's processes have open, such as files of memfd_create(2). The second sum is the
// service's part of the shared memory that its processes map. A file counts for one service only.
//
// The search is limited in time and in the number of files, and each service gets a share of the time. If the search misses
// more than a quarter of the memory that the container c uses, each service that may hide memory gets a Note. If the kernel
// uses more than a quarter of the container's memory, for example for data in sockets, services with many sockets get a Note.
// Services without a result are left out.
func sharedMemory(ctx context.Context, o Options, list []boot.Gateway, c proc.ContainerMemory) (found []boot.Measurement) {
	processes, err := gatewayProcesses(o, list)
	if err != nil {
		return nil
	}
	seen, end, hidden := make(map[inode]bool), time.Now().Add(sharedMemorySearchTimeout), c.Shared
	inMemory := func(file string, _ uint64) bool {
		var st unix.Statfs_t
		return unix.Statfs(file, &st) == nil && st.Type == unix.TMPFS_MAGIC
	}
	for n, i := range rand.Perm(len(list)) {
		s := &diskUsage{countedInodes: seen, files: maxFiles - maxFilesInMemory, deadline: time.Now().Add(time.Until(end) / time.Duration(len(list)-n))}
		all, mapped, parts := processes[list[i].Service], uint64(0), uint64(0)
		// Without the right to act as the user of the service, this process counts the memory for no service.
		_ = s.eachProcess("/proc/", all, func(dir string) {
			s.addOpenDeleted(dir+"/fd/", inMemory)
			mapped += proc.ParseMemory(procstat.ReadStatus(path.Base(dir))).Shared
		})
		if s.eachProcessUntilEnd(ctx, "/proc/", all, func(_ context.Context, dir string) { parts += proportionalShared(dir) }) == nil {
			mapped = parts
		}
		out := boot.Measurement{Service: list[i].Service, Run: list[i].RunNumber, Bytes: max(s.bytes, mapped)}
		if s.incomplete || s.hidesFiles || (s.sockets > manySockets || s.ports > manySockets/8) && c.Kernel > c.Used/4 {
			out.Note = "it may hide memory, because hinit cannot examine all that it has open; "
		}
		hidden -= min(hidden, out.Bytes)
		found = append(found, out)
	}
	for _, dir := range []string{"/dev/shm", "/tmp", "/run"} {
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

// proportionalShared returns how many bytes of shared memory count for a process (Pss_Shmem, proc_pid_smaps(5)). Processes that
// map the same memory have equal parts of it. If the kernel doesn't report the part, all shared memory that the process maps
// counts. dir is the directory of the process below /proc.
func proportionalShared(dir string) uint64 {
	text, _ := os.ReadFile(dir + "/smaps_rollup")
	if part, ok := procstat.Status(text).Number("Pss_Shmem", 10); ok {
		return part << 10
	}
	return proc.ParseMemory(procstat.ReadStatus(path.Base(dir))).Shared
}

// readMemoryRecord returns the content of memoryFile. It returns nil if the file can't be read, or if another user could have
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

// admitGateways decides which gateways in list may start with the free memory of the container c. Each gateway is expected to
// use as much memory as in the last record.
func admitGateways(o Options, list []boot.Gateway, c proc.ContainerMemory) (found []boot.Measurement) {
	home, err := fsutil.OpenNoLink(o.Home, fsutil.ProcessActor())
	if err != nil {
		return nil
	}
	defer home.Close()
	return reserveMemory(list, readMemoryRecord(home), c)
}

// reserveMemory reserves memory for the gateways in list, the most important first. In the result, a gateway for which no
// memory is left has a reason to wait (Hold). used is the recorded memory of each gateway in bytes. A gateway without a record
// gets no reservation. A gateway counts for at most half of the memory, so that even a very large gateway can start at some
// time.
func reserveMemory(list []boot.Gateway, used map[string]uint64, c proc.ContainerMemory) (found []boot.Measurement) {
	most := c.Limit / 100 * startMemoryPercent
	room := most - min(c.Used, most)
	list = slices.SortedStableFunc(slices.Values(list), func(a, b boot.Gateway) int { return cmp.Compare(b.MemoryRank, a.MemoryRank) })
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
