package s6_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"hinit/internal/testkit"
)

// agentID is the user ID of the volume's owner.
const agentID = 10000

// startLines is the number of lines that a gateway writes at its start, enough to fill a log file.
const startLines = 12000

// gatewayProgram is a shell script that imitates a gateway. It writes many lines, then "ready", and
// "farewell" after SIGTERM.
const gatewayProgram = `trap 'echo "$STAGE farewell"; exit 0' TERM
k=0
while [ $k -lt 12000 ]; do echo "$STAGE $k xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"; k=$((k+1)); done
echo "$STAGE ready"
while :; do sleep 0.1 & wait $!; done
`

// reconciled makes the service directories that the agent's image has under s6 (contract of s6, section 5.2) and runs them.
const reconciled = `mkdir -p /run/service/.s6-svscan
printf '#!/bin/sh\nexit 0\n' >/run/service/.s6-svscan/finish; chmod 755 /run/service/.s6-svscan/finish
for p in default coder resting; do
	home=$V/profiles/$p; [ $p != default ] || home=$V
	d=/run/service/gateway-$p; mkdir -p $d/log
	printf '#!/bin/sh\nexec s6-setuidgid 10000:10000 /bin/sh %s/gateway %s\n' $ROOT $p >$d/run
	printf '#!/bin/sh\nd=%s/logs/gateways/%s\ns6-setuidgid 10000:10000 mkdir -p $d\ns6-setuidgid 10000:10000 rm -f $d/lock\nexec s6-setuidgid 10000:10000 s6-log 1 n10 s1000000 T $d\n' $V $p >$d/log/run
	chmod 755 $d/run $d/log/run
	grep -q '"desired_state":"running"' $home/gateway_state.json || : >$d/down
done
exec s6-svscan /run/service`

// wanted are the profiles of the volume, and whether their gateways run.
var wanted = map[string]bool{"default": true, "coder": true, "resting": false}

// volume is the data volume, which each init uses in turn.
type volume struct {
	root, path string
	files      map[string]fileState // Files as the previous stage left them.
}

// fileState is the owner and the mode of a file, which another init must not change.
type fileState struct {
	mode     fs.FileMode
	uid, gid uint32
}

func newVolume(t *testing.T) *volume {
	t.Helper()
	root, err := os.MkdirTemp("/var/tmp", "hinit-s6-volume-") //nolint:usetesting // the agent's user has to get there
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	v := &volume{root: root, path: root + "/data"}
	write := func(name, text string) {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write("gateway", gatewayProgram)
	write("hinit.yaml", fmt.Sprintf(`agent:
  {user: "10000:10000", binary: /bin/true, ready: up, gateway: [/bin/sh, %[1]s, "{profile}"], gateway_default: [/bin/sh, %[1]s, default]}
boot: {hooks: []}
`, root+"/gateway"))
	for profile, up := range wanted {
		home := "data/"
		if profile != "default" {
			home += "profiles/" + profile + "/"
		}
		state := "stopped"
		if up {
			state = "running"
		}
		write(home+"SOUL.md", "I am "+profile+".\n")
		write(home+"gateway_state.json", `{"gateway_state":"`+state+`","desired_state":"`+state+`"}`+"\n")
	}
	if err := os.MkdirAll(v.path+"/logs/gateways", 0o755); err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(v.path, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chown(path, agentID, agentID))
	})
	if err := errors.Join(err, os.Chmod(root, 0o755)); err != nil {
		t.Fatal(err)
	}
	v.files = v.readFiles(t)
	return v
}

// readFiles lists owners and modes, except for the modes of log files.
func (v *volume) readFiles(t *testing.T) map[string]fileState {
	t.Helper()
	files := make(map[string]fileState)
	err := filepath.WalkDir(v.path, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return errors.New("no owner")
		}
		mode := info.Mode()
		if name := filepath.Base(path); name == "current" || strings.HasPrefix(name, "@") {
			mode &^= 0o100
		}
		files[path] = fileState{mode, st.Uid, st.Gid}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// stage runs an init on the volume until its gateways are ready, calls during, and ends the init
// with a signal.
func (v *volume) stage(t *testing.T, name, tools, init string, end syscall.Signal, during func(run func(words ...string) string)) {
	t.Helper()
	env := []string{
		"PATH=" + tools + ":/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C", "TZ=UTC", "HINIT_S6=1", "HINIT_CONFIG=" + v.root + "/hinit.yaml",
		"HERMES_HOME=" + v.path, "V=" + v.path, "ROOT=" + v.root, "STAGE=" + name,
	}
	outputFile, err := os.Create(filepath.Join(v.root, "said-"+name))
	if err != nil {
		t.Fatal(err)
	}
	defer outputFile.Close()
	cmd := exec.Command("/bin/sh", "-c", "set -e\nmount --make-rprivate /\nmount -t tmpfs -o mode=755 tmpfs /run\nmount -t proc proc /proc\n"+init)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, outputFile, outputFile
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }() // Ignore the error: everything ends with PID 1.
	inside := func(words ...string) string {
		c := exec.Command("nsenter", append([]string{"--mount", "--pid", "--target", strconv.Itoa(cmd.Process.Pid)}, words...)...)
		c.Env = env
		out, _ := c.CombinedOutput() // only the output of the command matters
		return string(out)
	}
	for deadline := time.Now().Add(2 * time.Minute); !v.ready(name, inside); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(outputFile.Name())
			t.Fatalf("%s: the gateways are not up: %v; PID 1 said:\n%.4000s", name, v.up(inside), text)
		}
	}
	if during != nil {
		during(inside)
	}
	if err := cmd.Process.Signal(end); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(2 * time.Minute):
		t.Fatalf("%s does not end", name)
	}
	now := v.readFiles(t)
	for path, was := range v.files {
		is, there := now[path]
		if !there && strings.HasPrefix(filepath.Base(path), "@") || filepath.Base(path) == "lock" && !there {
			continue // The next init removes the oldest archive, and creates the lock again.
		}
		if is != was {
			t.Errorf("%s: %s was %v and is %v", name, path, was, is)
		}
	}
	for path, is := range now {
		if strings.HasPrefix(path, v.path+"/logs/gateways/") && (is.uid != agentID || is.gid != agentID) {
			t.Errorf("%s: %s is uid %d's", name, path, is.uid)
		}
	}
	v.files = now
}

// up returns which gateways run, according to the init's tools.
func (v *volume) up(inside func(words ...string) string) map[string]bool {
	is := make(map[string]bool)
	for profile := range wanted {
		is[profile] = inside("s6-svstat", "-o", "up", "/run/service/gateway-"+profile) == "true\n"
	}
	return is
}

// ready reports whether exactly the wanted gateways run, and whether all of their first lines are in their logs.
func (v *volume) ready(stage string, inside func(words ...string) string) bool {
	for profile, up := range wanted {
		current, _ := os.ReadFile(v.path + "/logs/gateways/" + profile + "/current") // The file may not exist yet.
		if up && !bytes.Contains(current, []byte("  "+stage+" ready\n")) {
			return false
		}
	}
	return maps.Equal(v.up(inside), wanted)
}

var (
	stamped = regexp.MustCompile(`^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{9})  (\S+) (\S+)`)
	archive = regexp.MustCompile(`^@[0-9a-f]{24}\.[su]$`)
)

// readLog returns a profile's log lines without numbers. It checks for lost lines and descending
// time stamps.
func (v *volume) readLog(t *testing.T, profile string) (lines, archives []string) {
	t.Helper()
	dir := v.path + "/logs/gateways/" + profile
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "@") {
			archives = append(archives, e.Name())
		}
		if strings.HasPrefix(e.Name(), "@") && !archive.MatchString(e.Name()) {
			t.Errorf("%s/%s is no archive of s6-log", dir, e.Name())
		}
	}
	slices.Sort(archives)
	last, stage, next := "", "", 0
	for _, name := range append(slices.Clone(archives), "current") {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			m := stamped.FindStringSubmatch(line)
			if m == nil {
				t.Fatalf("%s/%s: %q is no line of s6-log", dir, name, line)
			}
			if m[1] < last {
				t.Errorf("%s/%s: %q comes after %s", dir, name, line, last)
			}
			last = m[1]
			number, err := strconv.Atoi(m[3])
			if err != nil {
				lines = append(lines, m[2]+" "+m[3])
				continue
			}
			if m[2] != stage {
				stage, next = m[2], 0
				lines = append(lines, stage)
			}
			if number != next {
				t.Fatalf("%s/%s: line %d of %s comes where %d should", dir, name, number, stage, next)
			}
			next++
			if next == startLines {
				lines = append(lines, stage+" all")
			}
		}
	}
	return lines, archives
}

// TestAVolumeGoesFromS6ToHinitAndBack checks that the same gateways run under s6, under hinit and under s6 again on one
// volume.
func TestAVolumeGoesFromS6ToHinitAndBack(t *testing.T) {
	requireS6(t)
	testkit.NeedRoot(t)
	for name, end := range map[string]syscall.Signal{"stopped": syscall.SIGTERM, "killed": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVolume(t)
			v.stage(t, "before", theirs, reconciled, end, nil)
			v.stage(t, "hinit", ours, "exec hinit init -- sleep 100000", end, func(inside func(words ...string) string) {
				for profile := range wanted {
					if !wanted[profile] {
						continue
					}
					out := inside("hinit", "logs", profile, "--previous", "-n", "100000")
					for _, line := range []string{"before 0 ", "before ready", "hinit 0 ", "hinit ready"} {
						if strings.Count(out, line) != 1 {
							t.Errorf("hinit logs %s has not one line %q: %.300s", profile, line, out)
						}
					}
				}
			})
			v.stage(t, "after", theirs, reconciled, end, nil)
			want := []string{}
			for _, stage := range []string{"before", "hinit", "after"} {
				want = append(want, stage, stage+" all", stage+" ready")
				if end == syscall.SIGTERM {
					want = append(want, stage+" farewell")
				}
			}
			for profile, up := range wanted {
				if !up {
					continue
				}
				messages, archives := v.readLog(t, profile)
				if !slices.Equal(messages, want) {
					t.Errorf("the log of %s tells %q, want %q", profile, messages, want)
				}
				cut := 0 // Number of files whose writer was killed.
				for _, name := range archives {
					if strings.HasSuffix(name, ".u") {
						cut++
					}
				}
				if len(archives) < 3 || (cut > 0) != (end == syscall.SIGKILL) {
					t.Errorf("the archives of %s are %q", profile, archives)
				}
				labels := strings.Join(archives, "\n")
				tool := func(dir string) string {
					return runScript(t, dir, "cat <<'END' | s6-tai64nlocal\n"+strings.ReplaceAll(strings.ReplaceAll(labels, ".s", " s"), ".u", " u")+"\nEND\n").output
				}
				if a, b := tool(ours), tool(theirs); a != b || strings.Contains(a, "@") {
					t.Errorf("hinit reads the times of %s as %q, s6 as %q", profile, a, b)
				}
			}
		})
	}
}
