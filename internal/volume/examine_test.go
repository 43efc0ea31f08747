package volume

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/boot"
	"hinit/internal/fsutil"
	"hinit/internal/testkit"
)

// A missing directory is a failure, and the examination must leave no files behind.
func TestAVolumeIsExamined(t *testing.T) {
	o := Options{}
	o.Home, o.Agent = t.TempDir(), fsutil.ProcessActor()
	o.Logs = filepath.Join(o.Home, "logs")
	results := func() (all []string) {
		var found client.Findings
		for _, c := range checks(o, boot.Job{AgentUser: boot.CallerAsAgent().User, ProfileMarker: "SOUL.md", MaxProfiles: 10}) {
			c.run(&found)
		}
		for _, f := range found {
			if f.Check != "space" {
				all = append(all, f.Check+" "+f.Result)
			}
		}
		return all
	}
	if got := results(); !slices.Equal(got, []string{"home ok", "logs failed"}) {
		t.Errorf("without a log directory: %q", got)
	}
	if err := os.Mkdir(o.Logs, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := results(); !slices.Equal(got, []string{"home ok", "logs ok"}) {
		t.Errorf("with it: %q", got)
	}
	if left, err := os.ReadDir(o.Logs); len(left) > 0 || err != nil {
		t.Errorf("it has left %v, %v", left, err)
	}
}

// Without free inodes no file can be created, even if the volume has free space. hinit doctor must report that.
func TestTheDoctorWarnsOfAVolumeWithoutFreeInodes(t *testing.T) {
	testkit.NeedRoot(t)
	home := t.TempDir()
	if err := unix.Mount("tmpfs", home, "tmpfs", 0, "size=300m,nr_inodes=20"); err != nil {
		t.Skipf("cannot mount a tmpfs: %v", err)
	}
	defer func() { must(t, unix.Unmount(home, 0)) }()
	o := Options{}
	o.Home, o.Logs, o.Agent = home, home, fsutil.ProcessActor()
	var found client.Findings
	for _, c := range checks(o, boot.Job{AgentUser: boot.CallerAsAgent().User, ProfileMarker: "SOUL.md", MaxProfiles: 10}) {
		c.run(&found)
	}
	space := slices.IndexFunc(found, func(f client.Finding) bool { return f.Check == "space" })
	if space < 0 || found[space].Result != "warning" || !strings.Contains(found[space].Detail, "only 19 files more") {
		t.Errorf("found %+v", found)
	}
}

// hinit doctor must warn if the kernel reports no waiting times, because hinit then can't share the processors among
// profiles.
func TestTheDoctorSaysThatNoProcessorsAreShared(t *testing.T) {
	testkit.NeedRoot(t)
	stat := filepath.Join(t.TempDir(), "schedstat")
	must(t, os.WriteFile(stat, []byte("0 0 0\n"), 0o600))
	o := Options{}
	o.Home, o.Agent, o.Tenants = t.TempDir(), fsutil.ProcessActor(), someTenants
	warns := func() bool {
		var found client.Findings
		for _, c := range checks(o, boot.Job{AgentUser: boot.CallerAsAgent().User, ProfileMarker: "SOUL.md", MaxProfiles: 10}) {
			c.run(&found)
		}
		return slices.ContainsFunc(found, func(f client.Finding) bool { return f.Check == "isolation.processors" })
	}
	if warns() {
		t.Error("it says so on a kernel that reports waits")
	}
	said := make(chan bool)
	go func() {
		runtime.LockOSThread() // the thread gets its own mounts, and ends with its goroutine
		if errors.Join(unix.Unshare(unix.CLONE_NEWNS|unix.CLONE_FS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount(stat, "/proc/thread-self/schedstat", "", unix.MS_BIND, "")) != nil {
			close(said)
			return
		}
		said <- warns()
	}()
	if said, mounted := <-said; !mounted {
		testkit.SkipOrFail(t, "cannot mount")
	} else if !said {
		t.Error("it says nothing")
	}
}
