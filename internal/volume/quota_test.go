package volume

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/testkit"
)

// measureHome measures one profile whose quota warns at 1 MiB and stops at 2 MiB. change fills its home first.
func measureHome(t *testing.T, w boot.Gateway, change func(home string)) boot.Measurement {
	t.Helper()
	data := tempDir(t)
	home := filepath.Join(data, boot.ProfilesDir, "coder")
	if err := os.MkdirAll(filepath.Join(home, "deep", "er"), 0o700); err != nil {
		t.Fatal(err)
	}
	change(home)
	w.Service, w.Profile, w.Warn, w.Stop = "gateway-coder", "coder", 1<<20, 2<<20
	var messages []boot.Message
	done := make(chan struct{})
	go func() {
		defer close(done)
		// The measurement raises the niceness of its thread, and processes started from that thread would inherit it. So the
		// thread ends with this goroutine.
		runtime.LockOSThread()
		measureDisk(t.Context(), Options{Options: boot.Options{Home: data, Tenants: someTenants}}, []boot.Gateway{w}, func(m boot.Message) { messages = append(messages, m) })
	}()
	<-done
	if len(messages) != 2 || messages[0].Examining == nil || messages[0].Examining.Check != "coder" || len(messages[1].Measurements) != 1 || messages[1].Measurements[0].Service != "gateway-coder" {
		t.Fatalf("%+v", messages)
	}
	return messages[1].Measurements[0]
}

var someTenants = boot.Tenants{Enabled: true, All: true, UIDs: config.UIDs{First: 20000, Last: 29999}}

// tenantID is one of the uids in someTenants.
const tenantID = 20001

// startDetachedProcess starts a process that only its user connects to a gateway. The process runs the script in dir until the
// end of the test.
func startDetachedProcess(t *testing.T, dir, script string) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-ec", script+"; echo done; exec sleep 1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: tenantID, Gid: tenantID}}
	cmd.Dir = dir
	out, err := cmd.StdoutPipe()
	must(t, errors.Join(err, cmd.Start()))
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	var word string
	if _, err := fmt.Fscan(out, &word); err != nil || word != "done" {
		t.Fatalf("the process has ended: %v", err)
	}
}

// A deleted file that a tenant's daemon has open counts for the tenant's quota, although the daemon has left the gateway's
// tree.
func TestAFileWithoutANameCountsForATenantWhoseProcessLeft(t *testing.T) {
	testkit.NeedRoot(t)
	w := measureHome(t, boot.Gateway{}, func(home string) {
		must(t, os.Chmod(filepath.Dir(home), 0o755))
		chownAll(t, home, tenantID)
		startDetachedProcess(t, home, `head -c 3000000 /dev/zero >gone; exec 3<gone; rm gone`)
	})
	if !strings.Contains(w.Hold, "2MiB") {
		t.Errorf("%+v", w)
	}
}

// A deleted file that a program has mapped and closed counts for the quota, although no descriptor shows it.
func TestAFileThatIsOnlyMappedCounts(t *testing.T) {
	w := measureHome(t, boot.Gateway{MainPID: os.Getpid()}, func(home string) {
		writeFileOfSize(t, home+"/gone", 3000)
		f, err := os.Open(home + "/gone")
		must(t, err)
		memory, err := unix.Mmap(int(f.Fd()), 0, 3000<<10, unix.PROT_READ, unix.MAP_SHARED)
		must(t, errors.Join(err, f.Close(), os.Remove(home+"/gone")))
		t.Cleanup(func() { _ = unix.Munmap(memory) })
	})
	if !strings.Contains(w.Hold, "2MiB") {
		t.Errorf("%+v", w)
	}
}

// /proc/PID/maps must be read to its end, although a line has a path of hundreds of directories.
func TestAFileWithALongPathHidTheOnesMappedAfterIt(t *testing.T) {
	list, long := filepath.Join(t.TempDir(), "maps"), strings.Repeat("/"+strings.Repeat("d", 200), 500)
	text := ""
	for i, path := range []string{"/short", long, long + " (deleted)", long + "/a (deleted)", "/b (deleted)", "/c"} {
		text += fmt.Sprintf("7f0000000000-7f0000300000 r--s %08x 08:01 %d                         %s\n", 0x1000, i+1, path)
	}
	must(t, os.WriteFile(list, []byte(text), 0o600))
	device := unix.Mkdev(8, 1)
	got, want := make(map[inode]uint64), map[inode]uint64{{device, 3}: 0x301000, {device, 4}: 0x301000, {device, 5}: 0x301000}
	addMappedDeleted(t.Context(), list, map[uint64]bool{device: true}, got)
	if !maps.Equal(got, want) {
		t.Errorf("it counts %v, not %v", got, want)
	}
}

func writeFileOfSize(t *testing.T, path string, kib int) {
	t.Helper()
	if err := os.WriteFile(path, []byte(strings.Repeat("x", kib<<10)), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAProfileWithMoreThanItsQuotaIsStoppedByName(t *testing.T) {
	if w := measureHome(t, boot.Gateway{}, func(home string) { writeFileOfSize(t, home+"/deep/a", 900) }); w.Note+w.Hold != "" {
		t.Errorf("with little: %+v", w)
	}
	w := measureHome(t, boot.Gateway{}, func(home string) { writeFileOfSize(t, home+"/deep/er/a", 900); writeFileOfSize(t, home+"/b", 200) })
	if w.Hold != "" || w.Note != "disk: its files have 1MiB, and quota.warn is 1MiB" {
		t.Errorf("with more than it should have: %+v", w)
	}
	w = measureHome(t, boot.Gateway{}, func(home string) { writeFileOfSize(t, home+"/deep/er/a", 3000) })
	if !strings.HasPrefix(w.Hold, "disk: its files have 2MiB, and quota.stop is 2MiB; ") || !strings.HasSuffix(w.Hold, "hinit start coder") {
		t.Errorf("with more than it may have: %+v", w)
	}
}

// Files below more than a thousand nested directories must count for the quota.
func TestFilesBelowAThousandDirectoriesDidNotCount(t *testing.T) {
	w := measureHome(t, boot.Gateway{}, func(home string) {
		dir, err := unix.Open(home, unix.O_PATH, 0)
		for range maxDepth + 5 {
			must(t, errors.Join(err, unix.Mkdirat(dir, "d", 0o700)))
			next, openErr := unix.Openat(dir, "d", unix.O_PATH|unix.O_NOFOLLOW, 0)
			err = errors.Join(openErr, unix.Close(dir))
			dir = next
		}
		must(t, errors.Join(err, unix.Mknodat(dir, "hidden", unix.S_IFREG|0o600, 0), unix.Close(dir)))
	})
	if !strings.HasPrefix(w.Hold, "disk: its files have at least ") || !strings.Contains(w.Hold, " and what lies below 1000 directories, and quota.stop is 2MiB; ") {
		t.Errorf("%+v", w)
	}
}

// All temporary directories that hinit may have made for a tenant must count for its quota, also a directory with a
// random number in its name.
func TestATemporaryDirectoryWithARandomNumberDidNotCount(t *testing.T) {
	testkit.NeedRoot(t)
	t.Setenv("TMPDIR", tempDir(t))
	for name, counts := range map[string]bool{"hinit-coder-20001": true, "hinit-coder-20001-4294967295": true, "hinit-other-20001-7": false} {
		w := measureHome(t, boot.Gateway{Isolated: true}, func(home string) {
			chownAll(t, home, tenantID)
			dir := filepath.Join(os.TempDir(), name)
			must(t, os.Mkdir(dir, 0o700))
			writeFileOfSize(t, dir+"/a", 3000)
			chownAll(t, dir, tenantID)
		})
		must(t, os.RemoveAll(filepath.Join(os.TempDir(), name)))
		if strings.Contains(w.Hold, "2MiB") != counts {
			t.Errorf("%s: %+v", name, w)
		}
	}
}

// Files in directories below millions of hard links must count for the quota.
func TestHardLinksHidFilesFromTheQuota(t *testing.T) {
	dir := t.TempDir()
	for i := range 20_000 {
		if file := fmt.Sprintf("%s/%d", dir, i); i%10_000 == 0 {
			must(t, os.WriteFile(file, nil, 0o600))
		} else {
			must(t, os.Link(fmt.Sprintf("%s/%d", dir, i/10_000*10_000), file))
		}
	}
	must(t, os.Mkdir(dir+"/deep", 0o700))
	writeFileOfSize(t, dir+"/deep/hidden", 3000)
	in, err := fsutil.OpenDir(filepath.Dir(dir), fsutil.ProcessActor())
	must(t, err)
	defer in.Close()
	look := func(files int, limit time.Duration) (*diskUsage, time.Duration) {
		begin := time.Now()
		s := &diskUsage{countedInodes: make(map[inode]bool), files: files, deadline: begin.Add(limit)}
		s.addDir(in, filepath.Base(dir), 0)
		return s, time.Since(begin)
	}
	gateway := boot.Gateway{Profile: "coder", Stop: 2 << 20}
	s, _ := look(maxFiles-1, time.Minute)
	if got := s.checkQuota(gateway).Hold; !strings.HasPrefix(got, "disk: its files have at least ") || !strings.Contains(got, " and more than 2097151 files, and quota.stop is 2MiB; ") {
		t.Errorf("with too many files: %q", got)
	}
	if s, _ = look(0, time.Minute); s.incomplete {
		t.Errorf("with time: %+v", s)
	}
	_, whole := look(0, time.Minute)
	testkit.Until(t, "a look without time for half of the names finds the file", func() bool {
		s, _ := look(0, whole/2)
		return s.incomplete && s.checkQuota(gateway).Hold != ""
	})
}

// Long names in one directory must need little memory in the measurement. If the kernel killed the measurement, no profile
// would be measured.
func TestOneDirectoryOfLongNamesTurnedAllQuotasOff(t *testing.T) {
	dir := t.TempDir()
	for i := range 1000 {
		must(t, os.WriteFile(fmt.Sprintf("%s/%0250d", dir, i), nil, 0o600))
		must(t, os.Mkdir(fmt.Sprintf("%s/d%d", dir, i), 0o700))
	}
	in, err := fsutil.OpenDir(filepath.Dir(dir), fsutil.ProcessActor())
	must(t, err)
	defer in.Close()
	gateway := boot.Gateway{Profile: "coder", Stop: 1 << 30}
	for names, want := range map[int]bool{0: false, maxNameBytes - 10_000: true} {
		s := &diskUsage{countedInodes: make(map[inode]bool), nameBytes: names, deadline: time.Now().Add(time.Minute)}
		s.addDir(in, filepath.Base(dir), 0)
		if got := s.checkQuota(gateway).Hold; strings.Contains(got, " and a directory with too many names, and quota.stop is 1GiB; ") != want || s.nameBytes != names {
			t.Errorf("with %d bytes of names, then %d: %q", names, s.nameBytes, got)
		}
	}
}

// A directory with millions of names must count with its size on the disk, not as 4 KiB.
func TestALargeDirectoryCountedAsASmallOne(t *testing.T) {
	w := measureHome(t, boot.Gateway{}, func(home string) {
		name := func(i int) string { return fmt.Sprintf("%s/deep/%0250d", home, i) }
		writeFileOfSize(t, name(0), 0)
		for i := range 10_000 {
			must(t, os.Link(name(0), name(i+1)))
		}
		for i := range 10_001 {
			must(t, os.Remove(name(i)))
		}
		var st syscall.Stat_t
		if must(t, syscall.Stat(home+"/deep", &st)); st.Blocks*512 < 2<<20 {
			t.Skip("this file system makes directories small again")
		}
	})
	if !strings.Contains(w.Hold, "MiB, and quota.stop is 2MiB; ") {
		t.Errorf("%+v", w)
	}
}

func TestAFileCountsOnceAndAnEmptyOneForItsInode(t *testing.T) {
	w := measureHome(t, boot.Gateway{}, func(home string) {
		writeFileOfSize(t, home+"/a", 900)
		for _, name := range []string{"b", "c", "deep/d"} {
			if err := os.Link(home+"/a", home+"/"+name); err != nil {
				t.Fatal(err)
			}
		}
		_ = os.Symlink("/usr", home+"/link")
	})
	if w.Note+w.Hold != "" {
		t.Errorf("names of one file: %+v", w)
	}
	w = measureHome(t, boot.Gateway{}, func(home string) {
		for i := range 600 {
			writeFileOfSize(t, filepath.Join(home, "deep", strings.Repeat("f", i%200+1)+string(rune('a'+i/200))), 0)
		}
	})
	if !strings.Contains(w.Hold, "2MiB") {
		t.Errorf("600 empty files: %+v", w)
	}
}

func TestAFileWithoutANameCountsWhileAProcessHasItOpen(t *testing.T) {
	w := measureHome(t, boot.Gateway{MainPID: os.Getpid()}, func(home string) {
		writeFileOfSize(t, home+"/gone", 3000)
		f, err := os.Open(home + "/gone")
		if err == nil {
			t.Cleanup(func() { _ = f.Close() })
			err = os.Remove(home + "/gone")
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	if !strings.Contains(w.Hold, "2MiB") {
		t.Errorf("%+v", w)
	}
}

func TestAHomeThatIsAFileSystemOfItsOwnIsAskedAsOne(t *testing.T) {
	testkit.NeedRoot(t)
	w := measureHome(t, boot.Gateway{}, func(home string) {
		if err := unix.Mount("none", home, "tmpfs", 0, "size=8m"); err != nil {
			testkit.SkipOrFail(t, "cannot mount a file system: "+err.Error())
		}
		t.Cleanup(func() { _ = unix.Unmount(home, unix.MNT_DETACH) })
		writeFileOfSize(t, home+"/a", 3000)
	})
	if !strings.Contains(w.Hold, "2MiB") {
		t.Errorf("%+v", w)
	}
}

// A home with a project quota must be measured by asking the file system. Each script makes a file system in the file $0,
// mounts it on $1, and gives the home $2 a project with a limit of 4 MiB.
func TestAHomeWithAProjectQuotaIsAskedForThat(t *testing.T) {
	testkit.NeedRoot(t)
	for kind, script := range map[string]string{
		"ext4": `truncate -s 64M "$0"; mkfs.ext4 -q -O project,quota -E quotatype=prjquota "$0"; mount -o loop,prjquota "$0" "$1"; mkdir -p "$2"
			chattr -p 7 +P "$2"; setquota -P 7 0 4096 0 0 "$1"`,
		"xfs": `truncate -s 320M "$0"; mkfs.xfs -q "$0"; mount -o loop,prjquota "$0" "$1"; mkdir -p "$2"
			xfs_quota -x -c "project -s -p $2 7" -c "limit -p bhard=4m 7" "$1"`,
	} {
		t.Run(kind, func(t *testing.T) { mountHomeWithQuota(t, script) })
	}
}

func mountHomeWithQuota(t *testing.T, script string) {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	w := measureHome(t, boot.Gateway{}, func(home string) {
		data := filepath.Dir(filepath.Dir(home))
		t.Cleanup(func() { _ = unix.Unmount(data, 0) })
		if out, err := exec.Command("/bin/sh", "-ec", script, image, data, home).CombinedOutput(); err != nil {
			t.Skipf("no file system with project quotas can be made here (make test-kernel): %v: %s", err, out)
		}
		writeFileOfSize(t, home+"/a", 3000)
		if err := errors.Join(os.Chmod(filepath.Dir(data), 0o755), os.Chmod(data, 0o755), os.Chmod(filepath.Dir(home), 0o755), os.Chmod(home, 0o777)); err != nil {
			t.Error(err)
		}
		// The writer is another user, because root may exceed the quota.
		agent := exec.Command("/bin/sh", "-c", `head -c 3000000 /dev/zero >"$0/b"`, home)
		agent.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12321, Gid: 12321}}
		// XFS reports the limit of a project as a full disk.
		if out, err := agent.CombinedOutput(); err == nil || !strings.Contains(string(out), "quota") && !strings.Contains(string(out), "No space") {
			t.Errorf("it may have more than its project: %v, %s", err, out)
		}
		writeFileOfSize(t, filepath.Join(filepath.Dir(home), "other"), 3000)
		if n, is := fileSystemUsage(data, filepath.Base(home)); !is || n < 3000<<10 || n > 4096<<10 {
			t.Errorf("the file system says that the home has %d bytes: %v", n, is)
		}
	})
	if !strings.Contains(w.Hold, "its files have ") || !strings.Contains(w.Hold, "MiB, and quota.stop is 2MiB") {
		t.Errorf("%+v", w)
	}
}

// A home is measured only in part. Its stopped gateway must not start, and its running gateway must not be stopped.
func TestAHomeThatTakesTooLongIsJudgedByWhatIsKnown(t *testing.T) {
	part := func(bytes uint64, stopped bool) boot.Measurement {
		s := diskUsage{bytes: bytes, incomplete: true}
		return s.checkQuota(boot.Gateway{Profile: "coder", Stop: 2 << 20, Stopped: stopped})
	}
	if w := part(1<<20, false); w.Hold != "" {
		t.Errorf("little of a running one: %+v", w)
	}
	if w := part(1<<20, true); !strings.Contains(w.Hold, "at least 1MiB") {
		t.Errorf("little of a stopped one: %+v", w)
	}
	if w := part(3<<20, false); !strings.Contains(w.Hold, "at least 3MiB") {
		t.Errorf("too much of a running one: %+v", w)
	}
	s := diskUsage{countedInodes: map[inode]bool{}}
	begin := time.Now()
	dir := t.TempDir()
	writeFileOfSize(t, dir+"/a", 1)
	in, err := fsutil.OpenDir(filepath.Dir(dir), fsutil.ProcessActor())
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	s.addDir(in, filepath.Base(dir), 0)
	if !s.incomplete || time.Since(begin) > time.Minute {
		t.Errorf("out of time: %+v", s)
	}
}

// One process keeps its memory locked, so that its maps file can't be read. All profiles must still get results. A FIFO without
// a writer stands for that file.
func TestAllQuotasWereOffBecauseOneAgentHeldItsMemory(t *testing.T) {
	testkit.NeedRoot(t) // acts as the user of process 1
	dir, proc := tempDir(t), tempDir(t)
	open, err := os.Create(dir + "/gone")
	must(t, err)
	defer open.Close()
	_, err = open.Write(make([]byte, 3<<20))
	var st syscall.Stat_t
	must(t, errors.Join(err, os.Remove(dir+"/gone"), syscall.Stat(dir, &st), os.MkdirAll(proc+"/1/fd", 0o755), os.Chmod(proc, 0o755)))
	must(t, errors.Join(os.Symlink(fmt.Sprintf("/proc/self/fd/%d", open.Fd()), proc+"/1/fd/3"), unix.Mkfifo(proc+"/1/maps", 0o644)))
	s := &diskUsage{countedInodes: make(map[inode]bool), deadline: time.Now().Add(100 * time.Millisecond)}
	s.addDeletedFiles(t.Context(), proc+"/", []int{1}, map[uint64]bool{st.Dev: true})
	if !s.incomplete || s.bytes < 3<<20 {
		t.Errorf("%+v", s)
	}
	writer, err := os.OpenFile(proc+"/1/maps", os.O_RDWR, 0)
	must(t, errors.Join(err, writer.Close()))
}

// Deleted open files count for the quota, even if a home has so many hard links that only a part of it is measured.
func TestDeletedFilesDidNotCountBesideManyLinks(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "gone"))
	must(t, err)
	defer f.Close()
	_, err = f.Write(make([]byte, 3<<20))
	var st syscall.Stat_t
	must(t, errors.Join(err, f.Sync(), os.Remove(f.Name()), syscall.Fstat(int(f.Fd()), &st)))
	s := &diskUsage{countedInodes: make(map[inode]bool), incomplete: true, files: maxFiles, deadline: time.Now().Add(time.Minute)}
	s.addDeletedFiles(t.Context(), "/proc/", []int{os.Getpid()}, map[uint64]bool{st.Dev: true})
	if got := s.checkQuota(boot.Gateway{Stop: 2 << 20}); !strings.Contains(got.Hold, "at least 3MiB") {
		t.Errorf("%+v", got)
	}
}
