package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/boot"
	"hinit/internal/fsutil"
	"hinit/internal/fsutil/owntree"
	"hinit/internal/testkit"
)

// makeRootFiles makes n files that root owns, a hundred in each directory.
func makeRootFiles(t testing.TB, dir string, n int) {
	t.Helper()
	for i := range n {
		if i%100 == 0 {
			must(t, os.MkdirAll(fmt.Sprintf("%s/%d", dir, i/100), 0o755))
		}
		f, err := os.Create(fmt.Sprintf("%s/%d/%d", dir, i/100, i))
		must(t, err)
		f.Close()
	}
}

func TestRepairOfManyFiles(t *testing.T) {
	testkit.NeedRoot(t)
	home := newVolumeDir(t)
	const n = int64(5000)
	makeRootFiles(t, home+"/profiles/coder/work", int(n))
	o, messages := options(t, home, nil)
	var last client.Repair
	res := Repair(context.Background(), o, func(p client.Repair) { last = p })
	// The directory profiles itself changes its owner, too.
	if res.Examined != n+n/100+2 || res.Changed != res.Examined+1 || res.Failed != 0 || res.StopReason != "" {
		t.Errorf("result is %s", res)
	}
	if last.Examined < n/2 || last.Changed < n/2 || last.Directory != "profiles" {
		t.Errorf("the last progress was %+v", last)
	}
	must(t, filepath.WalkDir(home+"/profiles", func(path string, _ os.DirEntry, err error) error {
		if err == nil && ownerText(t, path)[:11] != fmt.Sprintf("%d:%d", agentUID, agentGID) {
			err = fmt.Errorf("%s is %s", path, ownerText(t, path))
		}
		return err
	}))
	if len(res.WrongOwners) != maxWrongOwners || res.WrongOwners[0] != (WrongOwner{Path: home + "/profiles"}) {
		t.Errorf("culprits are %+v", res.WrongOwners)
	}
	if text := messages.text(); !strings.HasPrefix(text, "[stage2] ownership: ") || strings.Contains(text, "\n") {
		t.Errorf("said %q", text)
	}
}

func TestStartingOneProfileDoesNotWalkTheHomesOfAll(t *testing.T) {
	testkit.NeedRoot(t)
	home := newVolumeDir(t)
	for _, name := range []string{"coder", "writer", "other"} {
		makeRootFiles(t, home+"/profiles/"+name+"/work", 3)
	}
	must(t, os.Symlink(home+"/profiles/other", home+"/profiles/link"))
	o, _ := options(t, home, nil)
	o.OnlyProfiles = []string{"coder", "gone", "link", "writer"}
	res := Repair(context.Background(), o, noProgress)
	if res.Examined != 2*5 || res.Changed != 2*6 || res.Failed != 0 || res.StopReason != "" {
		t.Errorf("result is %s", res)
	}
	for name, want := range map[string]int{"": 0, "coder": agentUID, "writer/work/0/2": agentUID, "other": 0, "other/work/0/2": 0, "link": 0} {
		if got := uidOf(t, home+"/profiles/"+name); got != want {
			t.Errorf("%q is uid %d's, want %d", name, got, want)
		}
	}
}

// TestAProfileCouldNotBeMadeDuringARepair checks that a repair leaves a directory to the agent until it has the marker, which
// the agent writes last. A repair must not give an incomplete home to the profile's own user. Otherwise the agent can't make
// the rest, and neither the agent nor hinit can remove the home.
func TestAProfileCouldNotBeMadeDuringARepair(t *testing.T) {
	testkit.NeedRoot(t)
	home := newVolumeDir(t)
	o, _ := options(t, home, nil)
	o.Tenants = someTenants
	o.Tenants.ProfileMarker = "SOUL.md"
	for _, name := range []string{"whole", "half"} {
		makeRootFiles(t, home+"/profiles/"+name+"/memories", 2)
		must(t, exec.Command("chown", "-R", strconv.Itoa(agentUID), home+"/profiles/"+name).Run())
	}
	writeFile(t, home+"/profiles/whole/SOUL.md", "")
	res := Repair(context.Background(), o, noProgress)
	if whole := uidOf(t, home+"/profiles/whole/memories"); res.Failed != 0 || !someTenants.HasUID(uint32(whole)) {
		t.Errorf("the profile is uid %d's: %s", whole, res)
	}
	moveHomes(context.Background(), o.Options, "")
	if half := uidOf(t, home+"/profiles/half/memories"); half != agentUID || uidOf(t, home+"/profiles/half") != agentUID {
		t.Errorf("what the agent is making is uid %d's", half)
	}
	writeFile(t, home+"/profiles/half/SOUL.md", "")
	o.OnlyProfiles = []string{"half"}
	Repair(context.Background(), o, noProgress)
	if half := uidOf(t, home+"/profiles/half/memories"); !someTenants.HasUID(uint32(half)) {
		t.Errorf("the finished profile is uid %d's", half)
	}
}

func TestRepairBudgets(t *testing.T) {
	testkit.NeedRoot(t)
	home := newVolumeDir(t)
	makeRootFiles(t, home+"/profiles", 2000)
	o, _ := options(t, home, nil)
	o.MaxInodes = 300
	res := Repair(context.Background(), o, noProgress)
	if res.StopReason != errInodes.Error()+" in profiles" || res.Examined < 300 || res.Examined > 1000 {
		t.Errorf("result is %s", res)
	}
	o, _ = options(t, home, nil)
	o.MaxTime = time.Nanosecond
	if res := Repair(context.Background(), o, noProgress); res.StopReason != errTimeLimit.Error() {
		t.Errorf("result is %s", res)
	}
	ctx, cancel := context.WithCancel(context.Background())
	o, _ = options(t, home, nil)
	if res := Repair(ctx, o, func(client.Repair) { cancel() }); res.StopReason != context.Canceled.Error() || res.Examined > 1000 {
		t.Errorf("result is %s", res)
	}
	cancel()
	// The next repair must resume the interrupted one.
	o, _ = options(t, home, nil)
	if res := Repair(context.Background(), o, noProgress); res.StopReason != "" || res.Changed == 0 {
		t.Errorf("result is %s", res)
	}
	if got := uidOf(t, home+"/profiles/19/1999"); got != agentUID {
		t.Errorf("the last file is uid %d's", got)
	}
}

// The limit of files holds for each home, so that millions of files in one home don't prevent the repair of the others.
func TestATenantWithTooManyFilesEndedTheRepairOfAllOthers(t *testing.T) {
	testkit.NeedRoot(t)
	home := newVolumeDir(t)
	makeRootFiles(t, home+"/profiles/aaa", 2000)
	for name := range someTenants.UIDs.Size() / 1000 {
		writeFile(t, fmt.Sprintf("%s/profiles/z%d/file", home, name), "")
	}
	o, _ := options(t, home, nil)
	o.Tenants, o.MaxInodes = someTenants, 300
	res := Repair(context.Background(), o, noProgress)
	if want := errInodes.Error() + " in profiles/aaa"; res.StopReason != want || res.Examined > 1000 {
		t.Errorf("result is %s, not stopped early by %q", res, want)
	}
	for name := range someTenants.UIDs.Size() / 1000 {
		if path := fmt.Sprintf("%s/profiles/z%d/file", home, name); !someTenants.HasUID(uint32(uidOf(t, path))) {
			t.Errorf("%s is still uid %d's", path, uidOf(t, path))
		}
	}
}

// Many failures in one home, such as a hundred directories that are too deep, must not end the repair of the others.
func TestATenantWhoseFilesCanNotChangeEndedTheRepairOfAllOthers(t *testing.T) {
	testkit.NeedRoot(t)
	home := newVolumeDir(t)
	uid := int(FirstUID(someTenants.UIDs, "aaa"))
	must(t, os.MkdirAll(home+"/profiles/aaa", 0o700))
	dir, err := unix.Open(home+"/profiles/aaa", unix.O_PATH, 0)
	must(t, errors.Join(err, os.Chown(home+"/profiles/aaa", uid, uid)))
	mkdir := func(name string) {
		must(t, errors.Join(unix.Mkdirat(dir, name, 0o700), unix.Fchownat(dir, name, uid, uid, 0)))
	}
	for range 999 {
		mkdir("d")
		next, err := unix.Openat(dir, "d", unix.O_PATH, 0)
		must(t, errors.Join(err, unix.Close(dir)))
		dir = next
	}
	for i := range maxFailures + 2*owntree.BatchSize {
		mkdir(strconv.Itoa(i))
	}
	must(t, unix.Close(dir))
	for i := range 10 {
		makeRootFiles(t, fmt.Sprintf("%s/profiles/z%d", home, i), 2*owntree.BatchSize)
	}
	o, _ := options(t, home, nil)
	o.Tenants = someTenants
	res := Repair(context.Background(), o, noProgress)
	if res.StopReason != "" && res.StopReason != errNoChange.Error()+" in profiles/aaa" || res.Failed < maxFailures {
		t.Errorf("stopped by %q after %d failures", res.StopReason, res.Failed)
	}
	for i := range 10 {
		if path := fmt.Sprintf("%s/profiles/z%d/5/511", home, i); !someTenants.HasUID(uint32(uidOf(t, path))) {
			t.Errorf("%s is still uid %d's", path, uidOf(t, path))
		}
	}
}

func TestRepairInterruptedIsTakenUpAgain(t *testing.T) {
	testkit.NeedRoot(t)
	home := newVolumeDir(t)
	makeRootFiles(t, home+"/workspace", 2000)
	o, _ := options(t, home, nil)
	r := mustPrepareBoot(t, o)
	o.RepairEverything, o.MaxInodes = r.RepairEverything, 300
	if res := Repair(context.Background(), o, noProgress); res.StopReason == "" {
		t.Fatalf("result is %s", res)
	}
	o, messages := options(t, home, nil)
	r = mustPrepareBoot(t, o)
	if !r.RepairEverything || strings.Contains(messages.text(), "Fixing") {
		t.Errorf("full is %v, said %q", r.RepairEverything, messages.text())
	}
	o.RepairEverything = r.RepairEverything
	if res := Repair(context.Background(), o, noProgress); res.StopReason != "" || res.Changed == 0 {
		t.Errorf("result is %s", res)
	}
	if r := mustPrepareBoot(t, o); r.RepairEverything {
		t.Error("a repair that is through is wanted again")
	}
}

// A repair must not change links, devices, and root's files with several names. It must clear the set-user-ID bits of all other
// files.
func TestRepairRefuses(t *testing.T) {
	testkit.NeedRoot(t)
	home := newVolumeDir(t)
	outside := filepath.Dir(home) + "/outside"
	writeFile(t, outside+"/secret", "x")
	dir := home + "/cron"
	writeFile(t, dir+"/plain", "")
	writeFile(t, dir+"/setuid", "")
	must(t, os.Chmod(dir+"/setuid", 0o755|os.ModeSetuid))
	writeFile(t, home+"/hostdir/secret", "x")
	must(t, os.Link(home+"/hostdir/secret", dir+"/hard"))
	writeFile(t, dir+"/theirs", "")
	must(t, os.Link(dir+"/theirs", dir+"/theirs2"))
	must(t, os.Chown(dir+"/theirs", 4711, 4711))
	must(t, os.Symlink(outside+"/secret", dir+"/file-link"))
	must(t, os.Symlink(outside, dir+"/dir-link"))
	must(t, unix.Mkfifo(dir+"/fifo", 0o600))
	if err := unix.Mknod(dir+"/device", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
		must(t, os.WriteFile(dir+"/device", nil, 0o600))
		t.Log("no device:", err)
	}
	before := testkit.TreeSnapshot(t, outside)

	d, err := fsutil.OpenNoLink(home, nil)
	must(t, err)
	defer d.Close()
	w := owntree.Walk{NewOwner: fsutil.Owner{UID: agentUID, GID: agentGID, RefuseHardLinked: true}}
	refused := map[string]error{}
	w.OnFound = func(path string, _ uint32, err error) {
		if err != nil {
			refused[filepath.Base(path)] = err
		}
	}
	must(t, w.ChangeOwners(d, "cron", false))
	for name, uid := range map[string]int{"": agentUID, "plain": agentUID, "setuid": agentUID, "theirs": agentUID, "fifo": agentUID, "file-link": agentUID, "dir-link": agentUID, "hard": 0, "device": 0} {
		if got := uidOf(t, filepath.Join(dir, name)); got != uid {
			t.Errorf("%q is uid %d's, want %d", name, got, uid)
		}
	}
	if !errors.Is(refused["hard"], fsutil.ErrHardLink) || !errors.Is(refused["device"], fsutil.ErrDevice) || len(refused) != 2 || w.Refused != 2 {
		t.Errorf("refused %v", refused)
	}
	wantOwner(t, dir+"/setuid", fmt.Sprintf("%d:%d 0755", agentUID, agentGID))
	if after := testkit.TreeSnapshot(t, outside); after != before {
		t.Errorf("outside changed:\n%s\nwas\n%s", after, before)
	}

	// With protected hard links, only root can have made the second name of root's file.
	w = owntree.Walk{NewOwner: fsutil.Owner{UID: agentUID, GID: agentGID}}
	must(t, w.ChangeOwners(d, "cron", false))
	if w.Changed != 1 || uidOf(t, dir+"/hard") != agentUID {
		t.Errorf("walk is %+v", w)
	}
}

// makeDeepTree makes 1200 nested directories that belong to uid, in the directory cron of a volume.
func makeDeepTree(t *testing.T, home, name string, uid int) {
	t.Helper()
	must(t, os.Mkdir(home+"/cron", 0o755))
	fd, err := unix.Open(home+"/cron", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	for range 1200 {
		must(t, errors.Join(unix.Mkdirat(fd, name, 0o755), unix.Fchownat(fd, name, uid, uid, 0)))
		next, err := unix.Openat(fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
	t.Cleanup(func() {
		d, err := fsutil.OpenNoLink(home, nil)
		must(t, err)
		must(t, d.RemoveAll("cron"))
		d.Close()
	})
}

// Messages of a repair must contain only the beginning of long paths. PID 1 would store a path of a megabyte as a warning and
// as an event.
func TestADeepDirectoryMakesNoHugeMessage(t *testing.T) {
	testkit.NeedRoot(t)
	home := newVolumeDir(t)
	makeDeepTree(t, home, strings.Repeat("\xff", 250), agentUID)
	o, messages := options(t, home, nil)
	res := Repair(context.Background(), o, noProgress)
	if res.Failed != 1 || len(res.String()) > 4096 || len(messages.text()) > 4096 {
		t.Errorf("%d failures, and a message of %d bytes", res.Failed, len(messages.text()))
	}
}

func TestRepairSurvivesDepth(t *testing.T) {
	testkit.NeedRoot(t)
	home := newVolumeDir(t)
	makeDeepTree(t, home, "d", 0)
	o, _ := options(t, home, nil)
	if res := Repair(context.Background(), o, noProgress); res.Changed < 900 || res.Failed != 1 || res.StopReason != "" {
		t.Errorf("result is %s", res)
	}
}

func TestTheAgentCanNotMakeTheMarkOfARepair(t *testing.T) {
	testkit.NeedRoot(t)
	home := newVolumeDir(t)
	writeFile(t, home+"/"+boot.RepairPendingFile, "")
	chownAll(t, home, agentUID)
	o, _ := options(t, home, nil)
	if r := mustPrepareBoot(t, o); r.RepairEverything {
		t.Error("a mark of the agent's own making counts")
	}
}

// The agent puts back the mark of an old repair. A new repair must not begin, because it would give the files of other users
// below the volume to the agent.
func TestTheAgentCanNotBringTheMarkOfARepairBack(t *testing.T) {
	testkit.NeedRoot(t)
	home := newVolumeDir(t)
	must(t, os.Chown(home, 4321, 4321))
	o, _ := options(t, home, nil)
	if r := mustPrepareBoot(t, o); !r.RepairEverything {
		t.Fatal("nothing is to be repaired")
	}
	if r := mustPrepareBoot(t, o); !r.RepairEverything {
		t.Error("the mark is lost")
	}
	mark := home + "/" + boot.RepairPendingFile
	must(t, os.Rename(mark, home+"/kept"))
	must(t, os.Rename(home+"/kept", mark))
	if r := mustPrepareBoot(t, o); r.RepairEverything {
		t.Error("a mark that was moved counts")
	}
}

// After a change of PUID all files of the previous uid become the agent's, and no other files.
func TestAChangeOfPUIDLeavesNoFileBehind(t *testing.T) {
	testkit.NeedRoot(t)
	home := newVolumeDir(t)
	const before = 1234
	for name, uid := range map[string]int{
		boot.BootRecordFile: before, "SOUL.md": before, "audio_cache/a.ogg": before, "config.yaml.bak-1": before, "mixed/mine": before, "mixed/host": 0,
		"host_secret.json": 0, "other": 4321,
	} {
		must(t, os.MkdirAll(filepath.Dir(home+"/"+name), 0o755))
		writeFile(t, home+"/"+name, name)
		must(t, os.Lchown(home+"/"+name, uid, uid))
	}
	must(t, os.Chown(home+"/audio_cache", before, before))
	must(t, os.Chown(home, before, before))
	o, _ := options(t, home, nil)
	report := mustPrepareBoot(t, o)
	o.RepairEverything = report.RepairEverything
	Repair(t.Context(), o, noProgress)
	for name, want := range map[string]int{
		"SOUL.md": agentUID, "audio_cache": agentUID, "audio_cache/a.ogg": agentUID, "config.yaml.bak-1": agentUID, "mixed": 0, "mixed/mine": agentUID,
		"mixed/host": 0, "host_secret.json": 0, "other": 4321,
	} {
		if got := uidOf(t, home+"/"+name); got != want {
			t.Errorf("%s is uid %d's, want %d", name, got, want)
		}
	}
	if _, err := os.Lstat(home + "/" + boot.RepairPendingFile); err == nil {
		t.Error("the mark is left")
	}
}
