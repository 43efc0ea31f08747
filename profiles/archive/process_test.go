package archive_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
	"hinit/profiles/archive"
)

const agent = 21345

// newVolume creates a data volume with the profile coder. command runs hinit profile on it as root.
func newVolume(t *testing.T, dir string) (command func(args ...string) *exec.Cmd, profiles string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs files of another user")
	}
	profiles = filepath.Join(dir, "home/profiles")
	config := filepath.Join(t.TempDir(), "hinit.yaml")
	writeFile(t, config, fmt.Sprintf("home: %s\nagent: {user: \"%d:%d\"}\n", filepath.Join(dir, "home"), agent, agent))
	if err := os.MkdirAll(profiles, 0o755); err != nil {
		t.Fatal(err)
	}
	from := newHome(t)
	if out, err := exec.Command("cp", "-a", from, profiles).CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	for at := dir; at != "/tmp" && at != "/"; at = filepath.Dir(at) { // The agent's user must be able to reach the directory.
		_ = os.Chmod(at, 0o755)
	}
	if out, err := exec.Command("chown", "-R", fmt.Sprint(agent), filepath.Join(dir, "home")).CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	return func(args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(bin, "hinit"), append([]string{"profile"}, args...)...)
		cmd.Env = []string{"HINIT_CONFIG=" + config, "HINIT_RUNTIME_DIR=" + dir + "/none", "PATH=/bin:/usr/bin"}
		return cmd
	}, profiles
}

// addLargeFile adds a file of this size to the profile coder.
func addLargeFile(t *testing.T, profiles string, size int) {
	t.Helper()
	writeFile(t, profiles+"/coder/large", strings.Repeat("x", size))
	must(0, os.Chown(profiles+"/coder/large", agent, agent))(t)
}

func runCommand(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%q: %v: %s", cmd.Args, err, errs.String())
	}
	return errs.String()
}

// checkFails runs a command that must fail with this exit code, and returns its output.
func checkFails(t *testing.T, cmd *exec.Cmd, code int) string {
	t.Helper()
	out, _ := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != code {
		t.Errorf("%q: %v: %s", cmd.Args, cmd.ProcessState, out)
	}
	return string(out)
}

func TestRootGivesAnImportedProfileToTheAgent(t *testing.T) {
	command, profiles := newVolume(t, t.TempDir())
	file := filepath.Join(t.TempDir(), "coder.tar")
	if output := runCommand(t, command("export", "coder", "-o", file, "--secrets")); !strings.Contains(output, "one moment") {
		t.Error(output)
	}
	if info := must(os.Stat(file))(t); info.Mode().Perm() != 0o600 {
		t.Errorf("%v", info.Mode())
	}
	runCommand(t, command("import", "two", file))
	for name := range treeListing(t, profiles+"/two") {
		if info := must(os.Lstat(profiles + "/two/" + name))(t); ownerUID(info) != agent {
			t.Errorf("%s belongs to %d", name, ownerUID(info))
		}
	}
	if out, err := exec.Command("tar", "tf", file).CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "HEAD.json\n") || !strings.Contains(string(out), "profile/sessions/a/b/c") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestRootFollowsNoLinkOfTheAgents(t *testing.T) {
	command, profiles := newVolume(t, t.TempDir())
	secret := filepath.Join(t.TempDir(), "root.tar")
	runCommand(t, command("export", "coder", "-o", secret))
	if err := errors.Join(os.Symlink(secret, profiles+"/coder/x.tar"), os.Symlink(t.TempDir(), profiles+"/coder/dir")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"x.tar", "dir"} {
		if err := os.Lchown(profiles+"/coder/"+name, agent, agent); err != nil {
			t.Fatal(err)
		}
	}
	checkFails(t, command("import", "two", profiles+"/coder/x.tar"), 1)
	checkFails(t, command("export", "coder", "-o", profiles+"/coder/dir/x.tar"), 1)
	checkFails(t, command("export", "coder", "-o", filepath.Join(t.TempDir(), "coder.tar"), "--scratch", profiles+"/coder/dir"), 1)
	// A link must not be accepted as a home.
	if err := errors.Join(os.Rename(profiles+"/coder", profiles+"/other"), os.Symlink("/etc", profiles+"/coder")); err != nil {
		t.Fatal(err)
	}
	checkFails(t, command("export", "coder", "-"), 6)
}

// killCount is how often an import, and an export, is killed.
var killCount = flag.Int("kills", 40, "how often an import, and an export, is killed")

// TestAnImportIsKilledAtAnyMoment checks that a killed import leaves no partial profile, and keeps
// the profile that it was to replace.
func TestAnImportIsKilledAtAnyMoment(t *testing.T) {
	testkit.SkipIfShort(t)
	t.Parallel()
	command, profiles := newVolume(t, t.TempDir())
	addLargeFile(t, profiles, 8<<20)
	file := filepath.Join(t.TempDir(), "coder.tar")
	runCommand(t, command("export", "coder", "-o", file, "--secrets"))
	begin := time.Now()
	runCommand(t, command("import", "whole", file))
	long := time.Since(begin)
	writeFile(t, profiles+"/old/SOUL.md", "old")
	must(0, os.Chown(profiles+"/old", agent, agent))(t)
	old, whole := treeListing(t, profiles+"/old"), treeListing(t, profiles+"/whole")
	killed := 0
	for i := range *killCount {
		cmd := command("import", "two", file)
		name, before := "two", map[string]string{}
		if i%2 == 1 {
			cmd, name, before = command("import", "old", file, "--replace"), "old", old
		}
		cmd.Stdin = must(os.Open(file))(t)
		if i%4 > 1 {
			cmd.Args[4] = "-" // An archive on standard input is received completely before the import.
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(rand.N(long * 5 / 4))
		_ = cmd.Process.Kill()
		if cmd.Wait() != nil {
			killed++
			long += long / 10
		} else { // The import ended before the kill.
			long -= long / 10
		}
		after := map[string]string{}
		if _, err := os.Lstat(profiles + "/" + name); err == nil {
			after = treeListing(t, profiles+"/"+name)
		}
		if !maps.Equal(after, before) && !maps.Equal(after, whole) {
			t.Fatalf("run %d left half a profile: %d files", i, len(after))
		}
		if name == "old" && len(after) == len(whole) {
			must(0, os.RemoveAll(profiles+"/old"))(t)
			writeFile(t, profiles+"/old/SOUL.md", "old")
			old = treeListing(t, profiles+"/old")
		}
		must(0, os.RemoveAll(profiles+"/two"))(t)
	}
	t.Logf("%d of %d were killed at work", killed, *killCount)
	if killed < *killCount*3/10 {
		t.Errorf("only %d were killed", killed)
	}
	runCommand(t, command("import", "two", file))
	if left := must(filepath.Glob(profiles + "/.import-two*"))(t); len(left) != 0 {
		t.Errorf("%q is left", left)
	}
}

// TestAnExportIsKilledAtAnyMoment checks that a killed export leaves the profile unchanged and no
// file under the requested name.
func TestAnExportIsKilledAtAnyMoment(t *testing.T) {
	testkit.SkipIfShort(t)
	t.Parallel()
	command, profiles := newVolume(t, t.TempDir())
	addLargeFile(t, profiles, 8<<20)
	file := filepath.Join(t.TempDir(), "coder.tar")
	begin := time.Now()
	runCommand(t, command("export", "coder", "-o", file))
	long := time.Since(begin)
	size := must(os.Stat(file))(t).Size()
	stays := func() map[string]string {
		all := treeListing(t, profiles+"/coder")
		delete(all, "state.db-shm") // Readers of SQLite share this file.
		return all
	}
	before, killed := stays(), 0
	for i := range *killCount {
		must(0, os.Remove(file))(t)
		cmd := command("export", "coder", "-o", file)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(rand.N(long * 5 / 4))
		_ = cmd.Process.Kill()
		if cmd.Wait() != nil {
			killed++
			long += long / 10
		} else { // The export ended before the kill.
			long -= long / 10
		}
		if info, err := os.Stat(file); err == nil && info.Size() != size {
			t.Fatalf("run %d left an archive of %d bytes", i, info.Size())
		} else if errors.Is(err, fs.ErrNotExist) {
			writeFile(t, file, "")
		}
	}
	t.Logf("%d of %d were killed at work", killed, *killCount)
	if left := must(filepath.Glob(filepath.Dir(file) + "/.coder.tar.*"))(t); len(left) > 1 { // A kill just before the last rename leaves one part.
		t.Errorf("the killed exports have left %d parts of archives: %q", len(left), left)
	}
	// A child between fork and execve may still hold the snapshot's lock, so try again.
	for range 5 {
		if runCommand(t, command("export", "coder", "-o", file)); maps.Equal(stays(), before) {
			break
		}
	}
	if after := stays(); !maps.Equal(after, before) || killed < *killCount*3/10 {
		maps.DeleteFunc(after, func(name, is string) bool { return before[name] == is })
		t.Errorf("%d killed; %d files, of which are new or changed: %q", killed, len(after), after)
	}
}

// TestAKilledExportEndsTheCopyOfADatabase checks that the copying program ends with its export.
func TestAKilledExportEndsTheCopyOfADatabase(t *testing.T) {
	command, _ := newVolume(t, t.TempDir())
	dir := t.TempDir()
	must(0, errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o777)))(t) //nolint:gosec // the agent writes its pid there
	cmd := command("export", "coder", "-o", filepath.Join(t.TempDir(), "coder.tar"))
	cmd.Path = hinitWithCopyHook(t, "echo $$ >"+dir+"/new; mv "+dir+"/new "+dir+"/pid; kill -STOP $$")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	for began := time.Now(); pid == 0; time.Sleep(time.Millisecond) {
		text, _ := os.ReadFile(dir + "/pid")
		if pid, _ = strconv.Atoi(strings.TrimSpace(string(text))); time.Since(began) > time.Minute {
			t.Fatal("no database is copied")
		}
	}
	must(0, cmd.Process.Kill())(t)
	_ = cmd.Wait()
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		// An unreaped process has an empty command line too.
		if text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline"); len(text) == 0 {
			return
		}
		if time.Since(began) > 10*time.Second {
			_ = unix.Kill(pid, unix.SIGKILL)
			t.Fatal("the process that copies lives on")
		}
	}
}

// hinitWithCopyHook returns a hinit whose hinit-profile runs shell commands before it copies a database.
func hinitWithCopyHook(t *testing.T, commands string) string {
	t.Helper()
	dir := t.TempDir()
	for _, program := range must(os.ReadDir(bin))(t) {
		must(0, os.Link(filepath.Join(bin, program.Name()), filepath.Join(dir, program.Name())))(t)
	}
	must(0, os.Remove(dir+"/hinit-profile"))(t)
	script := "#!/bin/sh\n" + commands + "\nexec " + bin + "/hinit-profile \"$@\"\n"
	must(0, errors.Join(testkit.WriteProgram(dir+"/hinit-profile", []byte(script)), os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)))(t) //nolint:gosec // the agent runs this program
	return dir + "/hinit"
}

// atEachOpen calls do each time a process opens a file, and delays the process until do returns.
func atEachOpen(t *testing.T, path string, do func(path string) error) {
	t.Helper()
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY|unix.O_CLOEXEC)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		t.Skip("needs fanotify: ", err)
	}
	must(0, errors.Join(err, unix.FanotifyMark(fd, unix.FAN_MARK_ADD, unix.FAN_OPEN_PERM, unix.AT_FDCWD, path)))(t)
	events, ended := os.NewFile(uintptr(fd), "fanotify"), make(chan struct{})
	go func() {
		defer close(ended)
		var buf [4096]byte
		for {
			n, err := events.Read(buf[:])
			if err != nil {
				return
			}
			for rest := buf[:n]; len(rest) > 0; rest = rest[binary.NativeEndian.Uint32(rest):] { // The data consists of struct fanotify_event_metadata.
				opened := binary.NativeEndian.Uint32(rest[16:])
				if err := do(path); err != nil {
					t.Error(err)
				}
				_, err := events.Write(binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, opened), unix.FAN_ALLOW))
				if err := errors.Join(err, unix.Close(int(opened))); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	t.Cleanup(func() {
		_ = events.Close()
		<-ended
	})
}

// TestAnExportOfAllNamesTheMissingProfile checks that an export of all profiles fails if it can't
// read one of them.
func TestAnExportOfAllNamesTheMissingProfile(t *testing.T) {
	command, profiles := newVolume(t, t.TempDir())
	writeFile(t, profiles+"/closed/SOUL.md", "soul")
	must(0, os.Chmod(profiles+"/closed", 0o700))(t) // Root owns the directory, so the agent's user can't enter it.
	to := t.TempDir()
	if output := checkFails(t, command("export", "--all", to), 1); !strings.Contains(output, `cannot export all profiles: cannot use profile directory "closed"`) {
		t.Error(output)
	}
	if _, err := os.Stat(to + "/coder.tar"); err != nil {
		t.Error(err)
	}
}

// TestAnExportReplacesNoDevice checks that an export to /dev/null, a FIFO or /dev/stdout fails
// instead of replacing the device.
func TestAnExportReplacesNoDevice(t *testing.T) {
	command, _ := newVolume(t, t.TempDir())
	dir := t.TempDir()
	must(0, errors.Join(unix.Mkfifo(dir+"/fifo", 0o600), os.Symlink("/proc/self/fd/1", dir+"/stdout")))(t)
	for _, name := range []string{"/fifo", "/stdout"} {
		checkFails(t, command("export", "coder", "-o", dir+name), 1)
		if info := must(os.Lstat(dir + name))(t); info.Mode().IsRegular() {
			t.Errorf("%s is a regular file now", name)
		}
	}
}

// TestAnArchiveInTheHomeIsNotArchived checks that an archive in its own home does not contain the
// archive that it replaces.
func TestAnArchiveInTheHomeIsNotArchived(t *testing.T) {
	command, profiles := newVolume(t, t.TempDir())
	file := profiles + "/coder/coder.tar"
	var sizes []int64
	for _, to := range [][]string{{"-o", file}, {file}, {"-o", file}} {
		runCommand(t, command(append([]string{"export", "coder"}, to...)...))
		sizes = append(sizes, must(os.Stat(file))(t).Size())
		must(0, os.Chown(file, agent, agent))(t)
	}
	if out, err := exec.Command("tar", "tf", file).CombinedOutput(); err != nil || strings.Contains(string(out), "coder.tar") {
		t.Errorf("archives of %d bytes: %v: %s", sizes, err, out)
	}
}

// TestRootsFilesKeepNoProfileFromBeingReplacedOrDeleted checks that root can replace and delete a profile that contains root's
// files.
func TestRootsFilesKeepNoProfileFromBeingReplacedOrDeleted(t *testing.T) {
	command, profiles := newVolume(t, t.TempDir())
	file := filepath.Join(t.TempDir(), "coder.tar")
	runCommand(t, command("export", "coder", "-o", file, "--secrets"))
	writeFile(t, profiles+"/coder/roots/file", "root")
	if output := runCommand(t, command("import", "coder", file, "--replace")); strings.Contains(output, "was stopped") { // Without an init, nothing was stopped.
		t.Error(output)
	}
	writeFile(t, profiles+"/coder/roots/file", "root")
	// Root's file in the home is removed without giving it to the agent, who could read it.
	writeFile(t, profiles+"/coder/moved", "root")
	moved := must(os.Open(profiles + "/coder/moved"))(t)
	defer moved.Close()
	runCommand(t, command("delete", "coder", "--yes"))
	if left := must(os.ReadDir(profiles))(t); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
	if info := must(moved.Stat())(t); ownerUID(info) != 0 {
		t.Errorf("uid %d had root's file", ownerUID(info))
	}
	// Files of a third user are not given to the agent, who could read them.
	writeFile(t, profiles+"/other/SOUL.md", "soul")
	writeFile(t, profiles+"/other/secret/key", "x")
	must(0, errors.Join(os.Chown(profiles+"/other/secret", agent+1, agent+1), os.Chown(profiles+"/other/secret/key", agent+1, agent+1)))(t)
	checkFails(t, command("delete", "other", "--yes"), 1)
	if info := must(os.Stat(profiles + "/other/secret/key"))(t); ownerUID(info) != agent+1 {
		t.Errorf("uid %d has the key", ownerUID(info))
	}
}

// TestAnExportOfAllWaitsForNoProfile checks that a profile can't block the export of all profiles,
// for example with a FIFO.
func TestAnExportOfAllWaitsForNoProfile(t *testing.T) {
	testkit.SkipIfShort(t)
	t.Parallel()
	command, profiles := newVolume(t, t.TempDir())
	for _, name := range []string{"stopper", "zeta"} {
		if out, err := exec.Command("cp", "-a", profiles+"/coder", profiles+"/"+name).CombinedOutput(); err != nil {
			t.Fatal(err, string(out))
		}
	}
	for _, pipe := range []string{"state.db-journal", "pipe.db"} {
		must(0, errors.Join(unix.Mkfifo(profiles+"/coder/"+pipe, 0o600), os.Chown(profiles+"/coder/"+pipe, agent, agent)))(t)
	}
	// This script stops the copying program, as an agent could.
	program := hinitWithCopyHook(t, `case $(pwd -P) in */stopper) kill -STOP $$ ;; esac`)
	// This function changes the database each time it is opened, as a gateway could.
	atEachOpen(t, profiles+"/stopper/state.db", func(path string) error { return os.Chtimes(path, time.Now(), time.Now()) })
	to := t.TempDir()
	export := command("export", "--all", to)
	export.Path = program
	output := runCommand(t, export)
	for name, torn := range map[string]bool{"coder": false, "stopper": true, "zeta": false} {
		_, says, found := strings.Cut(output, "exported profile "+name+":")
		says, _, _ = strings.Cut(says, "exported profile")
		if !found || strings.Contains(says, "changed during each copy: state.db") != torn {
			t.Errorf("of %s it says %s", name, says)
		}
		file := must(os.Open(filepath.Join(to, name+".tar")))(t)
		if n := accountSum(t, importHome(t, file)+"/state.db"); n != 100 {
			t.Errorf("the accounts of %s have %d together", name, n)
		}
	}
	if !strings.Contains(output, "left out (neither a file nor a directory nor a link): pipe.db, state.db-journal") &&
		!strings.Contains(output, "left out (neither a file nor a directory nor a link): state.db-journal, pipe.db") {
		t.Error(output)
	}
}

// TestADatabaseThatBecomesAFIFODelaysItsExportOnce checks that a database that becomes a FIFO
// delays an export only once.
func TestADatabaseThatBecomesAFIFODelaysItsExportOnce(t *testing.T) {
	t.Parallel() // This test mostly waits, so it runs beside others.
	for _, name := range []string{"", "-journal"} {
		t.Run("state.db"+name, func(t *testing.T) {
			t.Parallel()
			dir := newHome(t)
			calls := 0
			x := archive.Export{Home: dir, Name: "coder", Backup: func(ctx context.Context, from, to *os.File, of string) error {
				calls++
				_ = os.Remove(dir + "/" + of + name)
				if err := unix.Mkfifo(dir+"/"+of+name, 0o600); err != nil {
					t.Error(err)
				}
				return backup(ctx, from, to, of)
			}}
			must(0, newDatabase(t, dir+"/second.db").Close())(t)
			began := time.Now()
			var out bytes.Buffer
			if _, _, _, err := x.Run(t.Context(), &out); err != nil || calls != 1 || time.Since(began) > 50*time.Second {
				t.Errorf("after %d calls and %v: %v", calls, time.Since(began), err)
			}
			got := importHome(t, &out)
			for _, db := range []string{"state.db", "second.db"} {
				if _, err := os.Stat(got + "/" + db); err != nil && name == "" {
					continue // The database is a FIFO now.
				}
				if n := accountSum(t, got+"/"+db); n != 100 {
					t.Errorf("the accounts of %s have %d together", db, n)
				}
			}
		})
	}
}

// mountVolume mounts a small tmpfs for a volume.
func mountVolume(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if os.Geteuid() != 0 {
		t.Skip("needs to mount")
	}
	if err := unix.Mount("archive", dir, "tmpfs", 0, options); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func TestAFullVolume(t *testing.T) {
	dir := mountVolume(t, "size=100m")
	command, profiles := newVolume(t, dir)
	addLargeFile(t, profiles, 45<<20)
	// The export must leave 64 MB for gateways, so the snapshot must go elsewhere.
	if output := checkFails(t, command("export", "coder", "-"), 1); !strings.Contains(output, "has no room") {
		t.Error(output)
	}
	scratch := t.TempDir()
	must(0, os.Chmod(scratch, 0o777))(t) //nolint:gosec // the agent writes there
	must(0, os.Chmod(filepath.Dir(scratch), 0o755))(t)
	file := filepath.Join(t.TempDir(), "coder.tar")
	runCommand(t, command("export", "coder", "-o", file, "--scratch", scratch))
	runCommand(t, command("import", "two", file))
	before := treeListing(t, profiles)
	if output := checkFails(t, command("import", "three", file), 1); !strings.Contains(output, "no space left") {
		t.Error(output)
	}
	cmd := command("import", "three")
	cmd.Stdin = must(os.Open(file))(t)
	checkFails(t, cmd, 1)
	if after := treeListing(t, profiles); !maps.Equal(after, before) {
		t.Errorf("%d files in the place of %d", len(after), len(before))
	}
	// A file on another file system must be complete as soon as it has its name.
	full := mountVolume(t, "size=1m")
	checkFails(t, command("export", "coder", "-o", full+"/coder.tar", "--scratch", scratch), 1)
	if left := must(os.ReadDir(full))(t); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
}

func TestAVolumeThatIsMountedReadOnly(t *testing.T) {
	dir := mountVolume(t, "size=100m")
	command, profiles := newVolume(t, dir)
	db := newDatabase(t, profiles+"/coder/busy.db")
	must(0, transferMoney(db, 5))(t)
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		// A writer keeps the file open, and another mount of it is read-only.
		if err := errors.Join(unix.Mount(dir, dir, "", unix.MS_BIND, ""), unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	}
	if output := checkFails(t, command("export", "coder", "-"), 1); !strings.Contains(output, "--scratch") {
		t.Error(output)
	}
	scratch := t.TempDir()
	must(0, os.Chmod(scratch, 0o777))(t) //nolint:gosec // the agent writes there
	must(0, os.Chmod(filepath.Dir(scratch), 0o755))(t)
	file := filepath.Join(t.TempDir(), "coder.tar")
	if output := runCommand(t, command("export", "coder", "-o", file, "--scratch", scratch+"/made")); !strings.Contains(output, "one moment") {
		t.Error(output)
	}
	if n := accountSum(t, importHome(t, must(os.Open(file))(t))+"/busy.db"); n != 100 {
		t.Errorf("the accounts have %d together", n)
	}
	if output := checkFails(t, command("import", "two", file), 1); !strings.Contains(output, "read-only file system") {
		t.Error(output)
	}
}

func ownerUID(info fs.FileInfo) uint32 { return info.Sys().(*syscall.Stat_t).Uid }
