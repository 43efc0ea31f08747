package version

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

func TestFromBuild(t *testing.T) {
	stamped := []debug.BuildSetting{
		{Key: "vcs", Value: "git"},
		{Key: "vcs.revision", Value: "0123456789abcdef0123456789abcdef01234567"},
		{Key: "vcs.time", Value: "2026-01-02T03:04:05Z"},
		{Key: "vcs.modified", Value: "false"},
	}
	dirty := append(stamped[:3:3], debug.BuildSetting{Key: "vcs.modified", Value: "true"})
	for _, tt := range []struct {
		name, version string
		settings      []debug.BuildSetting
		want          string
	}{
		{"released", "v1.2.3", stamped, "v1.2.3 (revision 0123456789ab, 2026-01-02T03:04:05Z) go1.26.0"},
		{"modified", "(devel)", dirty, "devel (revision 0123456789ab, modified, 2026-01-02T03:04:05Z) go1.26.0"},
		{"not stamped", "(devel)", nil, "devel (unknown revision) go1.26.0"},
		{"no version", "", nil, "devel (unknown revision) go1.26.0"},
		{"installed by version", "v0.9.0", nil, "v0.9.0 (unknown revision) go1.26.0"},
		{"short revision", "", []debug.BuildSetting{{Key: "vcs.revision", Value: "ab"}}, "devel (revision ab) go1.26.0"},
	} {
		build := &debug.BuildInfo{GoVersion: "go1.26.0", Main: debug.Module{Path: "hinit", Version: tt.version}, Settings: tt.settings}
		if got := fromBuild(build).String(); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestGet(t *testing.T) {
	info := Get()
	if info != Get() {
		t.Error("Get is not the same each time")
	}
	if info.Go != runtime.Version() || info.Version == "" {
		t.Errorf("the running test says %+v", info)
	}
	if text := info.String(); strings.Contains(text, "\n") {
		t.Errorf("String is %q", text)
	}
}

// TestStamps checks the version of a program with and without a stamp. It builds the program in a separate repository.
func TestStamps(t *testing.T) {
	for _, tool := range []string{"git", "go"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
	source, err := os.ReadFile("version.go")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":             "module stamped\n\ngo 1.26.0\n",
		"main.go":            "package main\n\nimport \"stamped/version\"\n\nfunc main() { print(version.Get().String()) }\n",
		"version/version.go": string(source),
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(),
			"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example.org",
			"GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@example.org", "GOWORK=off", "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	run("git", "init", "-q")
	run("git", "add", ".")
	run("git", "commit", "-q", "-m", "first")
	revision := run("git", "rev-parse", "HEAD")
	bin := filepath.Join(t.TempDir(), "stamped")

	run("go", "build", "-buildvcs=true", "-trimpath", "-o", bin, ".")
	if got := run(bin); !strings.Contains(got, "revision "+revision[:12]) || strings.Contains(got, "modified") {
		t.Errorf("a stamped build says %q, its commit is %s", got, revision)
	}
	if err := os.WriteFile(filepath.Join(dir, "README"), []byte("changed"), 0o644); err != nil {
		t.Fatal(err)
	}
	run("go", "build", "-buildvcs=true", "-trimpath", "-o", bin, ".")
	if got := run(bin); !strings.Contains(got, "modified") {
		t.Errorf("a build of a changed tree says %q", got)
	}
	run("go", "build", "-buildvcs=false", "-trimpath", "-o", bin, ".")
	if got, want := run(bin), "devel (unknown revision) "+runtime.Version(); got != want {
		t.Errorf("a build without a stamp says %q, want %q", got, want)
	}
}
