package volume

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"hinit/internal/boot"
	"hinit/internal/gendocs/reference"

	"hinit/internal/boot/keep"
	"hinit/internal/boot/kept"
	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/testkit"
)

// stepRunner is a Runner. Each hook writes the file in the last word of its command.
type stepRunner struct{ ran []string }

func (s *stepRunner) RunHook(_ context.Context, h boot.Hook) (int, error) {
	s.ran = append(s.ran, h.Name)
	return 0, nil
}

// bootSequence runs successive boots on the same volume.
type bootSequence struct {
	t     *testing.T
	o     Options
	hooks []boot.Hook
	env   []string
}

func (b *bootSequence) boot() string {
	b.t.Helper()
	ctx, r := context.Background(), &stepRunner{}
	m := NewStepRecord(b.o, "1", b.hooks)
	report := prepareBoot(ctx, b.o)
	m.Load(ctx, b.env, report.FilledFromImage)
	if _, err := RunHooks(ctx, b.hooks, r, m, false, func(boot.LogLine) {}); err != nil {
		b.t.Fatal(err)
	}
	if err := m.Save(ctx); err != nil && !errors.Is(err, fsutil.ErrSymlink) {
		b.t.Fatal(err)
	}
	return strings.Join(r.ran, " ")
}

func newBootSequence(t *testing.T) *bootSequence {
	t.Helper()
	home := newVolumeDir(t)
	o, _ := options(t, home, nil)
	hook := func(name string, inputs ...string) boot.Hook {
		return boot.Hook{Name: name, Command: []string{"/bin/" + name}, Inputs: inputs}
	}
	return &bootSequence{t: t, o: o, env: []string{"A=1"}, hooks: []boot.Hook{
		hook("a", home+"/config.yaml", home+"/deep/**/*.md"), hook("b", home+"/config.yaml"), {Name: "c", Command: []string{"/bin/c"}},
	}}
}

func TestBootStepsAreRemembered(t *testing.T) {
	b := newBootSequence(t)
	expect := func(what, want string) {
		t.Helper()
		if got := b.boot(); got != want {
			t.Errorf("%s: %q ran, want %q", what, got, want)
		}
	}
	home := b.o.Home
	expect("first", "a b c")
	expect("unchanged", "c")
	must(t, os.MkdirAll(home+"/deep/er", 0o755))
	writeFile(t, home+"/deep/er/x.md", "1")
	expect("a file that a glob finds", "a c")
	writeFile(t, home+"/deep/er/x.txt", "1")
	expect("a file that it does not find", "c")
	writeFile(t, home+"/config.yaml", "k: v")
	expect("an input of both", "a b c")
	must(t, os.Remove(home+"/config.yaml"))
	expect("a missing one", "a b c")
	expect("still missing", "c")
	b.env = []string{"A=2"}
	expect("the environment", "a b c")
	b.env = append(b.env, "HOSTNAME=x", "PUID=99", "HINIT_X=1")
	expect("what no result depends on", "c")
	b.hooks[0].Command = append(b.hooks[0].Command, "-v")
	expect("the command", "a c")
	must(t, syscall.Mkfifo(home+"/deep/pipe.md", 0o644))
	expect("what has no content", "a c")
	expect("what has no content, again", "a c")
	must(t, os.Remove(home+"/deep/pipe.md"))
	writeFile(t, home+"/"+boot.BootRecordFile, "{")
	expect("no record", "a b c")
	must(t, os.Remove(home+"/"+boot.BootRecordFile))
	must(t, os.Symlink("/etc/passwd", home+"/"+boot.BootRecordFile))
	expect("a link in the record's place", "a b c")
}

// A record that the agent has forged must not make the boot skip a hook of root's.
func TestForgedRecordSkipsNothingOfRoots(t *testing.T) {
	cfg := reference.Default()
	cfg.Boot.Hooks = []config.Hook{{Command: []string{"/bin/x"}, User: "root", Inputs: []string{"/etc/passwd"}}}
	b := newBootSequence(t)
	b.hooks = boot.ConfiguredHooks(cfg)
	b.boot()
	r := kept.StepRecord{Format: kept.FormatVersion, Steps: map[string]kept.StepHashes{}}
	withInputs := boot.Hook{Name: "x", Command: []string{"/bin/x"}, Inputs: []string{"/etc/passwd"}}
	for _, h := range []boot.Hook{b.hooks[0], withInputs} {
		r.Steps[stepKey(h)] = kept.StepHashes{}
	}
	data, err := json.Marshal(r)
	must(t, err)
	writeFile(t, b.o.Home+"/"+boot.BootRecordFile, string(data))
	if got := b.boot(); got != "x" {
		t.Errorf("%q ran", got)
	}
}

func TestStepsThatShareNothingRunTogether(t *testing.T) {
	b := newBootSequence(t)
	m := NewStepRecord(b.o, "1", b.hooks)
	if n := m.parallelPrefixLength(b.hooks); n != 1 {
		t.Errorf("two that share a file: %d at a time", n)
	}
	if n := m.parallelPrefixLength(b.hooks[1:]); n != 1 {
		t.Errorf("one without inputs beside one with: %d at a time", n)
	}
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"config.yaml", "skills", false},
		{"skills", "skills/a", true},
		{"skills/*", "skills/a/b", true},
		{"a/b", "a/c", false},
		{"**/x", "y", true},
		{"", "y", true},
	} {
		if patternsOverlap(tt.a, tt.b) != tt.want || patternsOverlap(tt.b, tt.a) != tt.want {
			t.Errorf("%q and %q overlap: want %v", tt.a, tt.b, tt.want)
		}
	}
	hooks := boot.ConfiguredHooks(reference.Default())
	for i := range hooks {
		hooks[i].IfExists = ""
	}
	o := b.o
	o.Home = "/opt/data"
	if n := NewStepRecord(o, "1", hooks).parallelPrefixLength(hooks); n != 2 {
		t.Errorf("the steps of the image: %d at a time", n)
	}
}

func TestSkillsFromElsewhere(t *testing.T) {
	home := tempDir(t)
	d, err := fsutil.OpenDir(home, nil)
	must(t, err)
	defer d.Close()
	for _, tt := range []struct {
		config, env string
		want        bool
	}{
		{"", "", false},
		{"skills:\n  # external_dirs: [/x]\n  external_dirs: []\n", "", false},
		{"skills:\n  external_dirs:\n    - /x\n", "", true},
		{"skills: {external_dirs: [/x]}\n", "", true},
		{"", "HERMES_BUNDLED_SKILLS=/x", true},
		{"", "HERMES_BUNDLED_SKILLS=", false},
	} {
		writeFile(t, home+"/config.yaml", tt.config)
		if got := hasOtherSkillDirs([]string{"A=1", tt.env}, d); got != tt.want {
			t.Errorf("%q, %q: %v", tt.config, tt.env, got)
		}
	}
}

// A new volume must get a copy of the prepared home in the image, with the owner of its own container's agent.
func TestEmptyVolumeGetsACopy(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	b := newBootSequence(t)
	home := b.o.Home
	b.o.Image.Seed = filepath.Join(tempDir(t), "share", "home")
	b.boot()
	writeFile(t, home+"/.env", "# mine\nAPI_SERVER_KEY=of-the-build\n")
	must(t, os.Chmod(home+"/.env", 0o600))
	writeFile(t, home+"/config.yaml", "k: v\n")
	must(t, os.Chmod(home+"/config.yaml", 0o640))
	must(t, os.MkdirAll(home+"/skills/x", 0o755))
	writeFile(t, home+"/skills/x/run", "#!/bin/sh\n")
	must(t, os.Chmod(home+"/skills/x/run", 0o755))
	writeFile(t, home+"/gateway_state.json", "{}")
	writeFile(t, home+"/logs/gateways/old", "")
	writeFile(t, home+"/.hinit/lease.7", "")
	b.boot()
	steps, err := keep.SaveSeed(home, b.o.Image.Seed)
	if err != nil || len(steps) != 2 {
		t.Fatalf("kept %q: %v", steps, err)
	}

	next := func(name string) *bootSequence {
		n := *b
		n.t = t
		n.o, _ = options(t, filepath.Join(filepath.Dir(home), name), nil)
		n.o.Agent = fsutil.NewActor(fsutil.Identity{UID: 4000, GID: 4001})
		n.o.Image.Seed = b.o.Image.Seed
		must(t, os.Mkdir(n.o.Home, 0o755))
		return &n
	}
	must(t, os.Rename(home, home+".first"))
	n := next("data")
	must(t, os.Mkdir(home+"/lost+found", 0o700)) // a new ext4 file system has this directory
	writeFile(t, home+"/.hinit/lease", "")       // the lease writes this file before the boot begins
	if got := n.boot(); got != "c" {
		t.Errorf("%q ran on an empty volume", got)
	}
	if got := n.boot(); got != "c" {
		t.Errorf("%q ran afterwards", got)
	}
	for rel, mode := range map[string]fs.FileMode{
		".env": 0o600, "config.yaml": 0o640, "skills/x/run": 0o755, "skills": 0o755 | fs.ModeDir, boot.BootRecordFile: 0o600,
	} {
		info, err := os.Lstat(home + "/" + rel)
		if err != nil {
			t.Error(err)
			continue
		}
		if st := info.Sys().(*syscall.Stat_t); info.Mode() != mode || st.Uid != 4000 || st.Gid != 4001 {
			t.Errorf("%s has %v and belongs to %d:%d", rel, info.Mode(), st.Uid, st.Gid)
		}
	}
	for _, rel := range []string{"gateway_state.json", "logs/gateways/old", ".hinit/lease.7"} {
		if _, err := os.Lstat(home + "/" + rel); err == nil {
			t.Errorf("%s is another container's", rel)
		}
	}
	env, err := os.ReadFile(home + "/.env")
	if text := string(env); err != nil || strings.Contains(text, "of-the-build") || !strings.HasPrefix(text, "# mine\nAPI_SERVER_KEY=") {
		t.Errorf("the .env is %q: %v", text, err)
	}

	must(t, os.Rename(home, home+".second"))
	n = next("data")
	writeFile(t, home+"/mine", "")
	if got := n.boot(); got != "a b c" {
		t.Errorf("%q ran on a volume with a file", got)
	}
	if _, err := os.Lstat(home + "/skills/x/run"); err == nil {
		t.Error("a volume with a file was filled")
	}

	// With another environment, the boot copies the files and runs the steps again.
	must(t, os.Rename(home, home+".third"))
	n = next("data")
	n.env = []string{"A=other"}
	if got := n.boot(); got != "a b c" {
		t.Errorf("%q ran with another environment", got)
	}
}

// A boot must complete an interrupted copy, and leave no partial file.
func TestAnInterruptedCopyIsFinished(t *testing.T) {
	b := newBootSequence(t)
	home := b.o.Home
	b.o.Image.Seed = filepath.Join(tempDir(t), "share", "home")
	b.boot()
	writeFile(t, home+"/skills/x/SKILL.md", strings.Repeat("x", seedChunk))
	writeFile(t, home+"/skills/y/SKILL.md", "y\n")
	b.boot()
	if _, err := keep.SaveSeed(home, b.o.Image.Seed); err != nil {
		t.Fatal(err)
	}
	for name, interrupted := range map[string]func(){
		"while it grew": func() { writeFile(t, home+"/"+partialSeedDir+"/skills/x/SKILL.md", "xx") },
		"when it was grown": func() {
			writeFile(t, home+"/"+completeSeedDir+"/skills/x/SKILL.md", strings.Repeat("x", seedChunk))
			writeFile(t, home+"/"+completeSeedDir+"/skills/y/SKILL.md", "y\n")
		},
		"after its first move": func() {
			writeFile(t, home+"/skills/x/SKILL.md", strings.Repeat("x", seedChunk))
			writeFile(t, home+"/skills/y/SKILL.md", "y\n")
			writeFile(t, home+"/"+completeSeedDir+"/SOUL.md", "")
		},
	} {
		must(t, os.RemoveAll(home))
		must(t, os.Mkdir(home, 0o755))
		interrupted()
		if os.Geteuid() == 0 {
			chownAll(t, home, agentUID)
		}
		if r := prepareBoot(t.Context(), b.o); !r.FilledFromImage || len(r.Warnings) > 0 {
			t.Errorf("%s: %+v", name, r)
		}
		x, _ := os.ReadFile(home + "/skills/x/SKILL.md")
		y, _ := os.ReadFile(home + "/skills/y/SKILL.md")
		if len(x) != seedChunk || string(y) != "y\n" {
			t.Errorf("%s: files of %d and %d bytes", name, len(x), len(y))
		}
		for _, left := range []string{partialSeedDir, completeSeedDir} {
			if _, err := os.Lstat(home + "/" + left); err == nil {
				t.Errorf("%s: %s is left", name, left)
			}
		}
	}
}

// The files of a sealed image count as unchanged without a check of each, until a file changes or a mount hides some.
func TestASealedImageIsNotLookedAtFileByFile(t *testing.T) {
	o := Options{Image: ImagePaths{Install: tempDir(t) + "/opt/hermes"}}
	writeFile(t, o.Image.Install+"/skills/a", "a")
	o.Image.Seal = filepath.Dir(o.Image.Install) + "/seal"
	writeFile(t, o.Image.Seal, "number\n")
	const root = "360 97 0:52 / / rw,noatime master:3 - fuse.fuse-overlayfs fuse-overlayfs rw\n"
	mount := func(point string) string { return root + "361 360 0:55 / " + point + " rw - ext4 /dev/vda rw\n" }
	for _, tt := range []struct{ name, mounts, want string }{
		{"as it was built", root, "number\n"},
		{"with a volume elsewhere", mount("/opt/data"), "number\n"},
		{"on another file system", strings.Replace(root, "fuse.fuse-overlayfs", "ext4", 1), ""},
		{"with a mount in it", mount(o.Image.Install + "/skills"), ""},
		{"with a mount over it", mount(filepath.Dir(o.Image.Install)), ""},
		{"with a mount over the seal", mount(o.Image.Seal), ""},
		{"with a table that cannot be read", "", ""},
	} {
		if got := o.sealNumber(tt.mounts); got != tt.want {
			t.Errorf("%s: %q", tt.name, got)
		}
	}
	writeFile(t, o.Image.Install+"/new", "")
	testkit.Until(t, "the change is seen", func() bool { // timestamps of files are coarse, so poll: a change within one tick is invisible
		must(t, os.Chmod(o.Image.Install, 0o755))
		return o.sealNumber(root) == ""
	})
}
