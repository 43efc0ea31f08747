package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"hinit/internal/boot"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
	"hinit/internal/testkit"
)

func mustPrepareBoot(t testing.TB, o Options) boot.Report {
	t.Helper()
	r := prepareBoot(context.Background(), o)
	if p, failed := r.FirstFailure(); failed || r.Unusable {
		t.Errorf("phase %s: %s", p.Name, p.Error)
	}
	return r
}

func TestFreshVolume(t *testing.T) {
	testkit.NeedRoot(t)
	home := filepath.Join(tempDir(t), "home/hermes/.hermes")
	o, messages := options(t, home, nil)
	writeInstallDir(t, o)
	r := mustPrepareBoot(t, o)
	if !r.RepairEverything {
		t.Error("a volume of root's is not looked through")
	}
	var names []string
	for _, p := range r.Phases {
		names = append(names, p.Name)
	}
	if got := strings.Join(names, " "); got != "home ownership directories seeds bootstrap browser" {
		t.Errorf("phases are %s", got)
	}
	wantOwner(t, filepath.Dir(home), "0:0 0755")
	for rel, mode := range map[string]string{
		"": "0755", ".env": "0600", "config.yaml": "0640", "SOUL.md": "0644", "cron": "0755", "logs": "0755", "logs/gateways": "0755",
		"platforms/pairing": "0755", "backups": "0755", "lazy-packages": "0755", "workspace": "0755", "skins": "0755", "pairing": "0755",
	} {
		wantOwner(t, filepath.Join(home, rel), fmt.Sprintf("%d:%d %s", agentUID, agentGID, mode))
	}
	if _, err := os.Lstat(home + "/profiles"); err == nil {
		t.Error("profiles was made")
	}
	if got := readFile(t, home+"/config.yaml"); got != "config: 1\n" {
		t.Errorf("config.yaml is %q", got)
	}
	if got := readFile(t, home+"/.env"); !regexp.MustCompile(`^A=b\nAPI_SERVER_KEY=[0-9a-f]{64}\n$`).MatchString(got) {
		t.Errorf(".env is %q", got)
	}
	want := "[stage2] Fixing ownership of " + home + " (targeted) to hermes (10000)\n[stage2] Generated API_SERVER_KEY for the loopback gateway api_server"
	if messages.text() != want {
		t.Errorf("said\n%s\nwant\n%s", messages.text(), want)
	}

	// The mark of an unfinished repair must stay until the repair is done.
	if r := mustPrepareBoot(t, o); !r.RepairEverything {
		t.Error("the repair that never happened is forgotten")
	}
	o.RepairEverything = true
	if res := Repair(context.Background(), o, noProgress); res.StopReason != "" || res.Failed != 0 {
		t.Errorf("repair: %s", res)
	}
	before := testkit.TreeSnapshot(t, home)
	o, messages = options(t, home, nil)
	if r := mustPrepareBoot(t, o); r.RepairEverything || messages.text() != "" {
		t.Errorf("the second boot says %q (full %v)", messages.text(), r.RepairEverything)
	}
	if res := Repair(context.Background(), o, noProgress); res.Changed != 0 || messages.text() != "" {
		t.Errorf("the second repair: %s, %q", res, messages.text())
	}
	if after := testkit.TreeSnapshot(t, home); after != before {
		t.Errorf("the second boot changed something:\n%s\nwas\n%s", after, before)
	}
}

func TestAllowList(t *testing.T) {
	testkit.NeedRoot(t)
	home := newVolumeDir(t)
	chownAll(t, home, agentUID)
	mine := append([]string{"config.yaml"}, boot.AgentFiles...)
	notMine := []string{"host_secret.json", "auth.json.bak", "SOUL.md", "sessions/x", "other/y", "workspace/z"}
	for _, name := range append(mine, notMine...) {
		writeFile(t, home+"/"+name, "x")
	}
	for _, name := range []string{"profiles/coder/.env", "profiles/coder/gateway_state.json", "profiles/coder/deep/file", "cron/jobs.json", "logs/gateways/coder/current"} {
		writeFile(t, home+"/"+name, "x")
	}
	o, messages := options(t, home, nil)
	r := mustPrepareBoot(t, o)
	if r.RepairEverything || strings.Contains(messages.text(), "Fixing") {
		t.Errorf("full %v: %s", r.RepairEverything, messages.text())
	}
	for _, name := range mine {
		if uidOf(t, home+"/"+name) != agentUID {
			t.Errorf("%s was not repaired", name)
		}
	}
	for _, name := range append(notMine, "sessions", "workspace") {
		if uidOf(t, home+"/"+name) != 0 {
			t.Errorf("%s was given away", name)
		}
	}
	wantOwner(t, home+"/.env", fmt.Sprintf("%d:%d 0600", agentUID, agentGID))
	wantOwner(t, home+"/config.yaml", fmt.Sprintf("%d:%d 0640", agentUID, agentGID))
	// The boot must not change the mode of a profile's .env.
	wantOwner(t, home+"/profiles/coder/.env", fmt.Sprintf("%d:%d 0644", agentUID, agentGID))
	for _, name := range []string{"profiles", "profiles/coder", "profiles/coder/gateway_state.json", "cron", "logs", "logs/gateways", "logs/gateways/coder", "logs/gateways/coder/current"} {
		if uidOf(t, home+"/"+name) != agentUID {
			t.Errorf("%s was not repaired before the gateways start", name)
		}
	}
	for _, name := range []string{"profiles/coder/deep", "profiles/coder/deep/file", "cron/jobs.json"} {
		if uidOf(t, home+"/"+name) != 0 {
			t.Errorf("%s was repaired on the boot path", name)
		}
	}
	if res := Repair(context.Background(), o, noProgress); res.Changed != 3 {
		t.Errorf("repair: %s", res)
	}
	for _, name := range []string{"profiles/coder/deep", "profiles/coder/deep/file", "cron/jobs.json"} {
		if uidOf(t, home+"/"+name) != agentUID {
			t.Errorf("%s was not repaired later", name)
		}
	}
	if uidOf(t, home+"/sessions/x") != 0 || uidOf(t, home+"/host_secret.json") != 0 {
		t.Error("the repair went too far")
	}
}

func TestRealHome(t *testing.T) {
	testkit.NeedRoot(t)
	home := newVolumeDir(t)
	real := filepath.Dir(home) + "/real/home"
	o, _ := options(t, home, map[string]string{"HERMES_REAL_HOME": real})
	if r := mustPrepareBoot(t, o); r.Home != real {
		t.Errorf("HOME is %q", r.Home)
	}
	wantOwner(t, real, fmt.Sprintf("%d:%d 0755", agentUID, agentGID))
	wantOwner(t, filepath.Dir(real), "0:0 0755")
	// The boot must not change an existing directory of the administrator.
	o, _ = options(t, home, map[string]string{"HERMES_REAL_HOME": filepath.Dir(real)})
	mustPrepareBoot(t, o)
	wantOwner(t, filepath.Dir(real), "0:0 0755")
}

func TestRealHomeMayBeTheRootDirectory(t *testing.T) {
	testkit.NeedRoot(t)
	var before, after unix.Stat_t
	if err := unix.Stat("/", &before); err != nil {
		t.Fatal(err)
	}
	for _, root := range []string{"/", "//", "/."} {
		o, messages := options(t, newVolumeDir(t), map[string]string{"HERMES_REAL_HOME": root})
		if r := mustPrepareBoot(t, o); r.Home != "/" || strings.Contains(messages.text(), "REAL_HOME") {
			t.Errorf("HOME is %q for %q, said %q", r.Home, root, messages.text())
		}
	}
	if err := unix.Stat("/", &after); err != nil || after.Uid != before.Uid || after.Gid != before.Gid || after.Mode != before.Mode {
		t.Errorf("/ was %d:%d %o and is %d:%d %o: %v", before.Uid, before.Gid, before.Mode, after.Uid, after.Gid, after.Mode, err)
	}
}

func TestLogsElsewhere(t *testing.T) {
	testkit.NeedRoot(t)
	home := newVolumeDir(t)
	o, _ := options(t, home, nil)
	o.Logs = filepath.Dir(home) + "/var/log/gateways"
	mustPrepareBoot(t, o)
	wantOwner(t, o.Logs, fmt.Sprintf("%d:%d 0755", agentUID, agentGID))
}

func TestNoDataDirectory(t *testing.T) {
	testkit.NeedRoot(t)
	dir := tempDir(t)
	writeFile(t, dir+"/file", "")
	o, messages := options(t, dir+"/file/data", nil)
	r := prepareBoot(context.Background(), o)
	if p, failed := r.FirstFailure(); !failed || p.Name != "home" || !r.Unusable || len(r.Phases) != 2 || r.Phases[1].Name != "browser" {
		t.Errorf("report is %+v", r)
	}
	if strings.Count(messages.text(), "\n") != 0 || !strings.Contains(messages.text(), "no data directory") {
		t.Errorf("said %q", messages.text())
	}
}

// A mount in place of one of the agent's directories must get the owner that the agent needs. Mounts below that directory must
// not change.
func TestMountsBelow(t *testing.T) {
	testkit.NeedRoot(t)
	home := newVolumeDir(t)
	mountTmpfs(t, home+"/workspace")
	mountTmpfs(t, home+"/profiles")
	mountTmpfs(t, home+"/skills")
	mountTmpfs(t, home+"/cron/elsewhere")
	must(t, os.Chown(home+"/skills", 1000, 1000))
	mountTmpfs(t, home+"/profiles/coder")
	for _, name := range []string{"workspace/f", "skills/f", "profiles/coder/.env", "profiles/writer/deep/f", "cron/elsewhere/f"} {
		writeFile(t, home+"/"+name, "")
	}
	o, _ := options(t, home, nil)
	mustPrepareBoot(t, o)
	for rel, uid := range map[string]int{
		"workspace": agentUID, "profiles": agentUID, "skills": 1000, "profiles/coder": agentUID, "profiles/coder/.env": agentUID,
		"profiles/writer": agentUID, "cron": agentUID, "cron/elsewhere": 0,
	} {
		if got := uidOf(t, home+"/"+rel); got != uid {
			t.Errorf("%s belongs to %d, want %d", rel, got, uid)
		}
	}
	o.RepairEverything = true
	res := Repair(context.Background(), o, noProgress)
	for rel, uid := range map[string]int{"workspace/f": 0, "skills/f": 0, "cron/elsewhere": 0, "cron/elsewhere/f": 0, "profiles/writer/deep/f": agentUID} {
		if got := uidOf(t, home+"/"+rel); got != uid {
			t.Errorf("after the repair %s belongs to %d, want %d", rel, got, uid)
		}
	}
	if res.Mounts != 4 || res.StopReason != "" {
		t.Errorf("repair: %+v", res)
	}
}

// childChecks run in a child process with fewer rights than root.
var childChecks = map[string]func(home string) error{
	// A boot without root must do all work that needs no other identity.
	"user": func(home string) error {
		said := &recorder{}
		o := optionsIn(home, filepath.Dir(home), map[string]string{"HERMES_GATEWAY_BOOTSTRAP_STATE": "running"}, said)
		r := prepareBoot(context.Background(), o)
		if p, failed := r.FirstFailure(); failed {
			return fmt.Errorf("phase %s: %s", p.Name, p.Error)
		}
		if said.text() != "[stage2] Generated API_SERVER_KEY for the loopback gateway api_server" {
			return fmt.Errorf("said %q", said.text())
		}
		if _, err := os.Stat(home + "/gateway_state.json"); err != nil {
			return err
		}
		if res := Repair(context.Background(), o, noProgress); res.Examined != 0 {
			return fmt.Errorf("repaired %+v", res)
		}
		return nil
	},
	// root without permission to change owners, as in a rootless container with a mount of the host
	"nochown": func(home string) error {
		said := &recorder{}
		o := optionsIn(home, filepath.Dir(home), nil, said)
		r := prepareBoot(context.Background(), o)
		if p, failed := r.FirstFailure(); failed {
			return fmt.Errorf("phase %s: %s", p.Name, p.Error)
		}
		want := "[stage2] Fixing ownership of " + home + " (targeted) to hermes (10000)\n" +
			"[stage2] Warning: chown " + home + " failed (rootless container?) — continuing"
		if got := said.text(); got != want {
			return fmt.Errorf("said %q, want %q", got, want)
		}
		if r.RepairEverything {
			return errors.New("a repair is wanted that can't do anything")
		}
		if res := Repair(context.Background(), o, noProgress); res.Changed != 0 || res.Failed == 0 {
			return fmt.Errorf("repaired %+v", res)
		}
		return nil
	},
	"fewcaps": func(home string) error {
		o := optionsIn(home, filepath.Dir(home), nil, &recorder{})
		if !o.Agent.SwitchesIdentity() {
			return errors.New("it can't become the agent")
		}
		r := prepareBoot(context.Background(), o)
		if p, failed := r.FirstFailure(); failed {
			return fmt.Errorf("phase %s: %s", p.Name, p.Error)
		}
		o.RepairEverything = true
		if res := Repair(context.Background(), o, noProgress); res.Failed != 0 || res.Changed == 0 {
			return fmt.Errorf("repaired %+v", res)
		}
		if lines := boot.StartRestrictions(boot.ContainerFacts{UID: 0, Agent: o.Agent, AgentUID: agentUID, AgentInPasswd: true, AgentName: "hermes"}); len(lines) > 0 && strings.Contains(strings.Join(lines, "\n"), "CAP_") {
			return fmt.Errorf("modes are %q", lines)
		}
		return nil
	},
	// the main thread acts as the agent's user while another thread checks permissions
	"mainthread": func(home string) error {
		o := optionsIn(home, filepath.Dir(home), nil, &recorder{})
		if unix.Gettid() != os.Getpid() || unix.Setfsuid(agentUID) != nil {
			return errors.New("the main thread is not the agent's user")
		}
		lines := make(chan []string)
		go func() {
			lines <- boot.StartRestrictions(boot.ContainerFacts{UID: 0, Agent: o.Agent, AgentUID: agentUID, AgentInPasswd: true, AgentName: "hermes"})
		}()
		if said := <-lines; strings.Contains(strings.Join(said, "\n"), "CAP_") {
			return fmt.Errorf("modes are %q", said)
		}
		return nil
	},
	"nocaps": func(home string) error {
		said := &recorder{}
		o := optionsIn(home, filepath.Dir(home), nil, said)
		if o.Agent.SwitchesIdentity() {
			return errors.New("it can become the agent")
		}
		r := prepareBoot(context.Background(), o)
		if p, failed := r.FirstFailure(); failed {
			return fmt.Errorf("phase %s: %s", p.Name, p.Error)
		}
		lines := strings.Join(boot.StartRestrictions(boot.ContainerFacts{UID: 0, Agent: o.Agent, AgentUID: agentUID, AgentInPasswd: true, AgentName: "hermes"}), "\n")
		if !strings.Contains(lines, "cannot be started") {
			return fmt.Errorf("modes are %q", lines)
		}
		return nil
	},
}

// MayExist must return true for a directory that can't be listed. Root without CAP_DAC_OVERRIDE may still enter it.
func TestHomeThatCannotBeListedIsRepairedAllTheSame(t *testing.T) {
	d, err := fsutil.OpenDir(t.TempDir(), nil)
	must(t, err)
	if there := boot.MayExist(d); there(".env") {
		t.Error("an empty directory has a name in it")
	}
	must(t, d.Close())
	if there := boot.MayExist(d); !there(".env") || !there("platforms/pairing") {
		t.Error("a directory that can't be listed is taken for empty")
	}
}
