package confine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"hinit/internal/isolation"
	"hinit/internal/procstat"
	"hinit/internal/testkit"
)

// A gateway with saved rules must start without the Go runtime, whose start the output of inittrace would show. Only rules that
// root has saved may be used.
func TestAGatewayStartsByRulesThatRootHasSavedAndByNoOthers(t *testing.T) {
	testkit.NeedRoot(t)
	if checkLandlock(isolation.LandlockABI()) != nil {
		testkit.SkipOrFail(t, "the kernel's Landlock lacks a part")
	}
	dir := accessibleDir(t, "own", "other", "shared")
	t.Cleanup(func() { _ = os.RemoveAll("/tmp/hinit-saved-12321") })
	if err := testkit.Build(dir, isolation.Program); err != nil {
		t.Fatal(err)
	}
	rules, program := filepath.Join(dir, "rules"), filepath.Join(dir, isolation.Program)
	run := func(uid uint32, p testkit.IsolationPlan, command ...string) string {
		cmd := exec.Command(program)
		cmd.Args, cmd.Env = p.Argv(program, command), []string{"GODEBUG=inittrace=1", "TMPDIR=/somewhere", "HOME=/elsewhere", webTokenPrefix + "x", "PATH=/usr/bin:/bin"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Logf("%v", err)
		}
		return string(out)
	}
	save := func() { run(0, testkit.IsolationPlan{Save: rules, Hide: []string{dir}}, "true") }
	save()
	p := testkit.IsolationPlan{Name: "saved", Home: dir + "/own", HOME: dir + "/own", Hide: []string{dir}, Share: []string{dir + "/shared"}, Rules: rules}
	script := `cat "` + dir + `/own/f" "` + dir + `/other/f" "` + dir + `/shared/f"; env; unshare -U true && echo unshared; touch /dev/shm/x && echo wrote-shm`
	out := run(12321, p, "/bin/sh", "-c", script)
	// Another test has changed the mounts, which makes the saved rules invalid.
	for tries := 0; strings.Contains(out, "init internal/") && tries < 5; tries++ {
		save()
		out = run(12321, p, "/bin/sh", "-c", script)
	}
	for _, want := range []string{"text of own", "text of shared", "TMPDIR=/tmp/hinit-saved-12321\n", "\nHOME=" + dir + "/own\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing:\n%s", want, out)
		}
	}
	for _, never := range []string{"init internal/", "text of other", "/somewhere", "/elsewhere", webTokenPrefix, "unshared", "wrote-shm"} {
		if strings.Contains(out, never) {
			t.Errorf("%q:\n%s", never, out)
		}
	}
	if out := run(12321, p, "/no/such/program"); !strings.Contains(out, `cannot start /no/such/program: no such file or directory`) {
		t.Errorf("%s", out)
	}
	p.HOME = ""
	if out := run(12321, p, "/usr/bin/env"); !strings.Contains(out, "HOME=/elsewhere\n") {
		t.Errorf("a command of an older hinit has lost its HOME:\n%s", out)
	}
	p.Share = []string{dir + "/shared/link"}
	if err := os.Symlink("../other", dir+"/shared/link"); err != nil {
		t.Fatal(err)
	}
	if out := run(12321, p, "/bin/cat", dir+"/other/f"); !strings.Contains(out, "there is a link in it") || strings.Contains(out, "text of other") {
		t.Errorf("%s", out)
	}
	p.Share = nil
	saved, err := os.ReadFile(rules)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*testkit.IsolationPlan){
		"another hidden place": func(p *testkit.IsolationPlan) { p.Hide = []string{dir, "/srv"} },
		"no hidden place":      func(p *testkit.IsolationPlan) { p.Hide = nil },
		"a file of the agent's": func(p *testkit.IsolationPlan) {
			p.Rules = dir + "/own/rules"
			if err := os.WriteFile(p.Rules, saved, 0o644); err != nil || os.Chown(p.Rules, 12321, 12321) != nil {
				t.Error(err)
			}
		},
		"half a file": func(p *testkit.IsolationPlan) {
			p.Rules = dir + "/half"
			if err := os.WriteFile(p.Rules, saved[:rulesHeaderSize-1], 0o644); err != nil {
				t.Error(err)
			}
		},
		"a missing file": func(p *testkit.IsolationPlan) { p.Rules = dir + "/none" },
	} {
		p := p
		change(&p)
		out := run(12321, p, "/bin/sh", "-c", script)
		if !strings.Contains(out, "init internal/") || !strings.Contains(out, "text of own") || strings.Contains(out, "wrote-shm") {
			t.Errorf("%s:\n%s", name, out)
		}
	}
}

// hinit-isolate itself changes the user of an isolated gateway. A second execution of hinit-isolate, which fails here, is
// needed only without valid rules or with settings that need hinit-tools.
func TestAnIsolatedGatewayExecutedAProgramMore(t *testing.T) {
	testkit.NeedRoot(t)
	if checkLandlock(isolation.LandlockABI()) != nil {
		testkit.SkipOrFail(t, "the kernel's Landlock lacks a part")
	}
	dir := accessibleDir(t, "own", "other")
	t.Cleanup(func() { _ = os.RemoveAll("/tmp/hinit-once-12321") })
	if err := testkit.Build(dir, isolation.Program, "hinit"); err != nil {
		t.Fatal(err)
	}
	rules, program := filepath.Join(dir, "rules"), filepath.Join(dir, isolation.Program)
	p := testkit.IsolationPlan{Name: "once", Home: dir + "/own", Hide: []string{dir}, Rules: rules}
	run := func(path string, words ...string) string {
		save := testkit.IsolationPlan{Save: rules, Hide: []string{dir}}.Argv(program, []string{"true"})
		if out, err := exec.Command(program, save[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		script := `echo "$(id -u) $(id -g) $(id -G)" $(pwd) $(grep -E '^(NoNewPrivs|CapBnd|CapPrm|Seccomp_filters):' /proc/self/status); cat "` + dir + `/other/f"; ulimit -n`
		cmd := exec.Command(program)
		cmd.Args = append(append([]string{"hinit-limits", "oom=300:/proc/self/oom_score_adj", "user=12321:12322:4", "dir=" + dir + "/own"}, words...), "--", path)
		cmd.Args = append(cmd.Args, p.Argv(program, []string{"/bin/sh", "-c", script})...)
		out, _ := cmd.CombinedOutput() // cat fails
		return string(out)
	}
	own := procstat.ReadStatus("self")
	filters, _ := own.Number("Seccomp_filters", 10)
	want := fmt.Sprintf("12321 12322 12322 4 %s/own CapPrm: 0000000000000000 CapBnd: %s NoNewPrivs: 1 Seccomp_filters: %d\n", dir, own.Fields("CapBnd")[0], filters+2)
	isolated := func(out string) bool {
		return strings.HasPrefix(out, want) && strings.Contains(out, "Permission denied")
	}
	out := run("/no/such/hinit-isolate")
	for tries := 0; !isolated(out) && tries < 5; tries++ { // another test has changed the mounts
		out = run("/no/such/hinit-isolate")
	}
	if !isolated(out) {
		t.Errorf("%s\nwant %s", out, want)
	}
	if out := run(program, "7:100:100"); !isolated(out) || !strings.HasSuffix(out, "\n100\n") {
		t.Errorf("with a limit, which hinit-tools sets: %s", out)
	}
	p.Rules = dir + "/none"
	if out := run(program); !isolated(out) {
		t.Errorf("without rules: %s", out)
	}
	if out := run("/no/such/hinit-isolate"); strings.Contains(out, "12321") {
		t.Errorf("it starts without rules: %s", out)
	}
}

// A gateway must not start if the kernel may choose its port for a program of another profile. The other profile could take the
// port within 0.01 s, by binding sockets to any port until the kernel chooses the right one.
func TestAnotherProfileTookAPortThatTheKernelChooses(t *testing.T) {
	dir := accessibleDir(t, "own")
	if err := testkit.Build(dir, isolation.Program); err != nil {
		t.Fatal(err)
	}
	rules, program := filepath.Join(dir, "rules"), filepath.Join(dir, isolation.Program)
	run := func(p testkit.IsolationPlan, uid uint32, prepare string) string {
		argv := p.Argv(program, []string{"/bin/sh", "-c", "echo runs"})
		cmd := exec.Command("/bin/sh", append([]string{"-ec", prepare + ` exec setpriv --reuid "$0" --clear-groups "$@"`, strconv.Itoa(int(uid))}, argv...)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Logf("%v", err)
		}
		return string(out)
	}
	const sysctl = "/proc/sys/net/ipv4/ip_local_"
	inRange := "echo 40000 40511 >" + sysctl + "port_range;"
	if out := runIsolated(t, testkit.IsolationPlan{Name: "t", Home: dir + "/own", Ports: []string{"18732"}}, "echo runs"); !strings.Contains(out, "runs") {
		t.Fatal(out)
	}
	run(testkit.IsolationPlan{Save: rules, Hide: []string{dir}}, 0, inRange)
	for _, tt := range []struct {
		port, prepare string
		degrade, runs bool
	}{
		{"39999", inRange, false, true},
		{"40000", inRange, false, false},
		{"40511", inRange, false, false},
		{"40512", inRange, false, true},
		{"40001", inRange, true, true},
		{"40001", inRange + "echo 40001 >" + sysctl + "reserved_ports;", false, true},
		{"40001", inRange + "echo 8080,39998-40002 >" + sysctl + "reserved_ports;", false, true},
		{"40003", inRange + "echo 8080,39998-40002 >" + sysctl + "reserved_ports;", false, false},
	} {
		for _, saved := range []string{rules, ""} {
			p := testkit.IsolationPlan{Name: "t", Home: dir + "/own", Hide: []string{dir}, Rules: saved, Ports: []string{"18732", tt.port}, Degrade: tt.degrade}
			out := run(p, 12321, tt.prepare)
			if strings.Contains(out, "runs\n") != tt.runs || (!tt.runs || tt.degrade) != strings.Contains(out, "another profile can take its port "+tt.port+", because") {
				t.Errorf("port %s after %q, rules %q: %s", tt.port, tt.prepare, saved, out)
			}
		}
	}
}

// A tenant must keep its temporary directory although it has changed the mode of that directory. With a new directory at each
// start, the tenant's quota would not count the old directories.
func TestATenantThatChangedTheModeOfItsTemporaryDirectoryGotAnother(t *testing.T) {
	dir := accessibleDir(t, "own")
	p := testkit.IsolationPlan{Name: "t", Home: dir + "/own"}
	const usual = "/tmp/hinit-t-12321"
	for _, mode := range []string{"755", "000", "2770"} {
		runIsolated(t, p, "echo x >$TMPDIR/old; chmod "+mode+" $TMPDIR")
		if out := runIsolated(t, p, "echo $TMPDIR; stat -c %a $TMPDIR; cat $TMPDIR/old"); out != usual+"\n700\nx\n" {
			t.Errorf("after chmod %s: %q", mode, out)
		}
	}
	runIsolated(t, p, "true")
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	other := func(script string) string {
		out := runIsolated(t, p, "echo $TMPDIR; "+script)
		if dir, _, _ := strings.Cut(out, "\n"); strings.HasPrefix(dir, usual+"-") {
			must(os.Remove(dir))
		}
		return out
	}
	must(os.Chown(usual, 12322, 12322))
	if out := other("ls " + usual); !strings.HasPrefix(out, usual+"-") || !strings.Contains(out, "denied") {
		t.Errorf("beside another user's: %q", out)
	}
	must(errors.Join(os.RemoveAll(usual), os.Symlink(dir+"/own", usual), os.Lchown(usual, 12321, 12321)))
	if out := other("true"); !strings.HasPrefix(out, usual+"-") {
		t.Errorf("beside a link: %q", out)
	}
}
