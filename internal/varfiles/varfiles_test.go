package varfiles_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/config"
	"hinit/internal/testkit"
	"hinit/internal/varfiles"
)

func TestFilesOfAService(t *testing.T) {
	cfg := &config.Config{Home: "/data", Services: map[string]config.Service{
		"web": {Name: "web", ProcessSettings: config.ProcessSettings{EnvFile: config.Paths{"/etc/web.env"}}}, "db": {Name: "db", User: "postgres", ProcessSettings: config.ProcessSettings{EnvFile: config.Paths{"-/etc/db.env"}}},
	}}
	cfg.Agent.User, cfg.Agent.EnvFile = "hermes", config.Paths{"-{profile_home}/x.env"}
	environ := []string{"A_FILE=/run/secrets/a"}
	for _, tt := range []struct {
		service client.Service
		want    []string
	}{
		{client.Service{Name: "web"}, []string{"A=/run/secrets/a", "/etc/web.env"}},
		// The agent's files are left out, because another user may not be able to read them.
		{client.Service{Name: "db"}, []string{"-/etc/db.env"}},
		{client.Service{Name: "gateway-default", Profile: "default"}, []string{"A=/run/secrets/a", "-/data/x.env"}},
		{client.Service{Name: "gateway-coder", Profile: "coder"}, []string{"A=/run/secrets/a", "-/data/profiles/coder/x.env"}},
		{client.Service{Name: "cmd"}, nil},
	} {
		if got := varfiles.Paths(cfg, &tt.service, environ); !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.service.Name, got, tt.want)
		}
	}
}

// A file of variables that is younger than the service's process must be found. The process of the test represents the service.
func TestAFileThatIsYoungerThanTheProcess(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "TOKEN")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	at := func(path string, when time.Time) {
		t.Helper()
		if err := os.Chtimes(path, when, when); err != nil {
			t.Fatal(err)
		}
	}
	up := client.Service{Name: "s", State: client.StateUp, PID: os.Getpid()}
	old, young := time.Now().Add(-time.Hour), time.Now().Add(time.Minute).Truncate(time.Second)
	for _, tt := range []struct {
		what      string
		dir, file time.Time
		service   client.Service
		want      time.Time
	}{
		{"both old", old, old, up, time.Time{}},
		{"a file has changed", old, young, up, young},
		{"the directory has changed", young, old, up, young},
		{"it is down", young, young, client.Service{Name: "s", State: client.StateDown, PID: os.Getpid()}, time.Time{}},
		{"its process is gone", young, young, client.Service{Name: "s", State: client.StateUp, PID: 1 << 30}, time.Time{}},
	} {
		at(file, tt.file)
		at(dir, tt.dir)
		for _, path := range []string{dir, "-" + dir} {
			if got := varfiles.ChangedAt(&tt.service, []string{path, "/missing"}); !got.Equal(tt.want) {
				t.Errorf("%s, %s: %v, want %v", tt.what, path, got, tt.want)
			}
		}
	}
	at(file, young)
	if got := varfiles.ChangedAt(&up, []string{"NAME=" + file}); !got.Equal(young) {
		t.Errorf("a file of a variable: %v", got)
	}
}

// hinit-actions and hinit restart --changed must not reveal the time of root's file that an agent has linked. Root's links must
// be followed, because a mounted Kubernetes Secret consists of them.
func TestALinkOfAnAgentToldTheTimeOfRootsFile(t *testing.T) {
	testkit.NeedRoot(t)
	dir := t.TempDir()
	home, secret, own := filepath.Join(dir, "home"), filepath.Join(dir, "secret"), filepath.Join(dir, "own")
	young := time.Now().Add(time.Minute).Truncate(time.Second)
	err := errors.Join(os.Mkdir(home, 0o755), os.Mkdir(secret, 0o700), os.WriteFile(secret+"/key", nil, 0o600), os.Symlink(secret+"/key", own),
		os.Symlink(secret+"/key", home+"/file.env"), os.Symlink(secret, home+"/dir"), os.Chown(home, 10000, 10000), os.Chmod(dir, 0o755), os.Chtimes(secret+"/key", young, young))
	if err != nil {
		t.Fatal(err)
	}
	up := client.Service{Name: "s", State: client.StateUp, PID: os.Getpid()}
	for _, file := range []string{"file.env", "dir", "dir/key"} {
		if got := varfiles.ChangedAt(&up, []string{home + "/" + file}); !got.IsZero() {
			t.Errorf("by %s it is told that the file has changed at %v", file, got)
		}
	}
	if got := varfiles.ChangedAt(&up, []string{own}); !got.Equal(young) {
		t.Errorf("by a link of root: %v", got)
	}
}
