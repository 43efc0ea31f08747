package volume

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"hinit/internal/boot"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
)

// mountDeadFS mounts a FUSE file system whose server never answers.
func mountDeadFS(t *testing.T, dir string) {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755))
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Mount("dead", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd))
	}
	if err != nil {
		// In Docker, FUSE needs --device /dev/fuse and --privileged. TestHangIsAbandoned tests the budget without FUSE.
		t.Skip("no FUSE here: ", err)
	}
	t.Cleanup(func() {
		unix.Close(fd)
		_ = unix.Unmount(dir, unix.MNT_DETACH)
	})
}

func TestDeadMountsBelow(t *testing.T) {
	testkit.NeedRoot(t)
	home := newVolumeDir(t)
	writeFile(t, home+"/profiles/alive/.env", "")
	writeFile(t, home+"/cron/f", "")
	for _, dir := range []string{"elsewhere", "workspace", "profiles/dead", "cron/dead", "logs"} {
		mountDeadFS(t, home+"/"+dir)
	}
	o, messages := options(t, home, nil)
	o.PhaseBudget, o.TotalBudget = time.Minute, 3*time.Minute // limits that even a slow machine does not reach
	writeInstallDir(t, o)
	start := time.Now()
	r := prepareBoot(context.Background(), o)
	took := time.Since(start)
	if r.Unusable || took > o.withDefaults().PhaseBudget/2 {
		t.Errorf("took %s; report %+v", took, r)
	}
	for _, p := range r.Phases {
		if p.Error != "" {
			t.Errorf("phase %+v", p)
		}
	}
	for _, dir := range []string{"profiles/dead", "workspace", "logs"} {
		if want := "[stage2] Warning: " + home + "/" + dir + " does not answer"; !strings.Contains(messages.text(), want) {
			t.Errorf("said %q, want %q", messages.text(), want)
		}
	}
	for _, name := range []string{"", "profiles/alive", "profiles/alive/.env", "cron", "sessions", ".env", "config.yaml"} {
		if uidOf(t, home+"/"+name) != agentUID {
			t.Errorf("%q was not repaired", name)
		}
	}
	o.RepairEverything = true
	if res := Repair(context.Background(), o, noProgress); res.StopReason != "" || res.Failed != 0 || res.Mounts != 4 {
		t.Errorf("repair: %+v", res)
	}
	if uidOf(t, home+"/cron/f") != agentUID {
		t.Error("what is beside a dead mount was not repaired")
	}
}

// The program of the CMD must be found although an earlier directory of PATH is on a dead server.
func TestAProgramIsFoundBesideADirectoryThatHangs(t *testing.T) {
	testkit.NeedRoot(t)
	dead := tempDir(t) + "/dead"
	mountDeadFS(t, dead)
	if path, found := boot.CommandFinder(dead+":/bin", "/")("sh"); path != "/bin/sh" || !found {
		t.Errorf("found %q, %v", path, found)
	}
}

func TestDeadVolume(t *testing.T) {
	testkit.NeedRoot(t)
	home := newVolumeDir(t)
	mountDeadFS(t, home)
	o, messages := options(t, home, nil)
	o.PhaseBudget = 100 * time.Millisecond
	r := prepareBoot(context.Background(), o)
	if !r.Unusable || !strings.Contains(messages.text(), home+" does not answer") {
		t.Errorf("report %+v, said %q", r, messages.text())
	}
	o.MaxTime = 100 * time.Millisecond
	if res := Repair(context.Background(), o, noProgress); res.StopReason != errTimeLimit.Error() || res.Changed != 0 {
		t.Errorf("repair: %+v", res)
	}
}
