package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// buildTestSpec builds the Spec of the default key.
func buildTestSpec(t *testing.T, change func(*Options), ownInit, limitsDisk bool) (Spec, *warnings) {
	t.Helper()
	o := fakeOptions(t)
	if change != nil {
		change(&o)
	}
	var w warnings
	o.Warn = w.add
	s, err := buildSpec(o, Key{}, ownInit, limitsDisk)
	if err != nil {
		t.Fatal(err)
	}
	return s, &w
}

func mountsAt(s Spec, target string) (found []Mount) {
	for _, m := range s.Mounts {
		if m.Target == target {
			found = append(found, m)
		}
	}
	return found
}

// TestRunArguments checks the arguments of docker run (contract, 19.2).
func TestRunArguments(t *testing.T) {
	cwd := t.TempDir()
	mounted := func(o *Options) { o.MountCwd, o.HostCwd = true, cwd }
	t.Run("hardening", func(t *testing.T) {
		s, _ := buildTestSpec(t, nil, false, false)
		tmpfs := map[string]string{"/tmp": "rw,exec,nosuid,size=512m", "/var/tmp": "rw,noexec,nosuid,size=256m", "/run": "rw,noexec,nosuid,size=64m"}
		for target, options := range tmpfs {
			if m := mountsAt(s, target); len(m) != 1 || m[0].Options != options || m[0].Type != "tmpfs" {
				t.Errorf("%s: %+v", target, m)
			}
		}
		if !slices.Equal(s.CapDrop, []string{"ALL"}) || !slices.Equal(s.SecurityOpt, []string{"no-new-privileges"}) || s.PidsLimit != 256 || s.Privileged ||
			s.Restart != "" || !slices.Equal(s.Cmd, []string{"sleep", "infinity"}) || s.CPUs != 1 || s.Memory != 5120<<20 || s.Dir != "/root" {
			t.Errorf("%+v", s)
		}
	})
	t.Run("auto mount adds the volume, first of all", func(t *testing.T) {
		s, _ := buildTestSpec(t, mounted, false, false)
		m := mountsAt(s, "/workspace")
		if len(m) != 1 || m[0].Source != cwd || slices.IndexFunc(s.Mounts, func(m Mount) bool { return m.Type == "bind" }) != slices.Index(s.Mounts, m[0]) {
			t.Errorf("%+v", s.Mounts)
		}
	})
	t.Run("auto mount is off by default", func(t *testing.T) {
		s, _ := buildTestSpec(t, func(o *Options) { o.HostCwd = cwd }, false, false)
		if m := mountsAt(s, "/workspace"); len(m) != 1 || m[0].Source == cwd {
			t.Errorf("%+v", m)
		}
	})
	t.Run("auto mount is skipped when the workspace is mounted", func(t *testing.T) {
		s, _ := buildTestSpec(t, func(o *Options) {
			mounted(o)
			o.Volumes = []Mount{{Type: "bind", Source: "/src", Target: "/workspace"}}
		}, false, false)
		if m := mountsAt(s, "/workspace"); len(m) != 1 || m[0].Source != "/src" {
			t.Errorf("%+v", m)
		}
	})
	t.Run("a mount below the workspace does not replace it", func(t *testing.T) {
		s, _ := buildTestSpec(t, func(o *Options) { o.Volumes = []Mount{{Type: "bind", Source: "/src", Target: "/workspace/projects"}} }, false, false)
		if m := mountsAt(s, "/workspace"); len(m) != 1 {
			t.Errorf("%+v", m)
		}
	})
	t.Run("auto mount replaces the persistent workspace", func(t *testing.T) {
		s, _ := buildTestSpec(t, mounted, false, false)
		if m := mountsAt(s, "/workspace"); len(m) != 1 || m[0].Source != cwd {
			t.Errorf("%+v", m)
		}
		if len(mountsAt(s, "/root")) != 1 {
			t.Error("no home")
		}
	})
	t.Run("a host directory that is none is skipped", func(t *testing.T) {
		s, _ := buildTestSpec(t, func(o *Options) { o.MountCwd, o.HostCwd = true, filepath.Join(cwd, "missing") }, false, false)
		if m := mountsAt(s, "/workspace"); len(m) != 1 || !strings.Contains(m[0].Source, "docker/default/workspace") {
			t.Errorf("%+v", m)
		}
	})
	t.Run("files that go with the container", func(t *testing.T) {
		s, _ := buildTestSpec(t, func(o *Options) { o.PersistFS = false }, false, false)
		for target, options := range map[string]string{"/root": "rw,exec,size=1g", "/home": "rw,exec,size=1g", "/workspace": "rw,exec,size=10g"} {
			if m := mountsAt(s, target); len(m) != 1 || m[0].Options != options {
				t.Errorf("%s: %+v", target, m)
			}
		}
	})
	t.Run("environment", func(t *testing.T) {
		s, _ := buildTestSpec(t, func(o *Options) { o.Env = map[string]string{"B": "2", "A": "1 x"} }, false, false)
		if !slices.Equal(s.Env, []string{"A=1 x", "B=2"}) {
			t.Errorf("%q", s.Env)
		}
	})
	t.Run("capabilities", func(t *testing.T) {
		three := []string{"DAC_OVERRIDE", "CHOWN", "FOWNER"}
		for host, c := range map[bool]struct {
			user  string
			added []string
		}{
			false: {"", append(slices.Clone(three), "SETUID", "SETGID")},
			true:  {fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid()), three},
		} {
			s, _ := buildTestSpec(t, func(o *Options) { o.HostUser = host }, false, false)
			if s.User != c.user || !slices.Equal(s.CapAdd, c.added) {
				t.Errorf("as the host's user %v: user %q, capabilities %q", host, s.User, s.CapAdd)
			}
		}
	})
	t.Run("disk", func(t *testing.T) {
		for can, size := range map[bool]string{true: "77m", false: ""} {
			if s, w := buildTestSpec(t, func(o *Options) { o.DiskMB = 77 }, false, can); s.Storage["size"] != size || w.contain("no limit") == can {
				t.Errorf("the engine can %v: %q, %q", can, s.Storage, w.texts)
			}
		}
		for driver, size := range map[string]string{"overlay2": "77m", "btrfs": ""} {
			f := newFake()
			f.info.Driver = driver
			mustOpen(t, fakeManager(t, f, func(o *Options) { o.DiskMB = 77 }), Key{})
			if f.specs[0].Storage["size"] != size {
				t.Errorf("%s: %q", driver, f.specs[0].Storage)
			}
		}
		f := newFake()
		f.info.Driver = "overlay2"
		f.failures["create"] = errors.New("--storage-opt is supported only for overlay over xfs with 'pquota' mount option")
		var w warnings
		m := fakeManager(t, f, func(o *Options) {
			o.DiskMB, o.Warn = 77, func(text string) {
				w.add(text)
				if text == noDiskLimitWarning {
					delete(f.failures, "create")
				}
			}
		})
		if mustOpen(t, m, Key{}); !w.contain("no limit") || len(w.texts) != 1 || len(f.containers) != 1 || f.specs[0].Storage["size"] != "" {
			t.Errorf("overlay2 without quotas: %q, %+v", w.texts, f.specs)
		}
	})
	t.Run("extra flags come last", func(t *testing.T) {
		s, _ := buildTestSpec(t, func(o *Options) {
			o.ExtraArgs = []string{"--memory", "1g", "--network=host-only", "--label", LabelAgent + "=0"}
		}, false, false)
		if s.Memory != 1<<30 || s.Network != "host-only" || s.Labels[LabelAgent] != "1" {
			t.Errorf("%+v", s)
		}
	})
	t.Run("an id with a colon is a directory's name all the same", func(t *testing.T) {
		s, err := buildSpec(fakeOptions(t), Key{Task: "a:b/../c"}, false, false)
		if m := mountsAt(s, "/root"); err != nil || strings.Count(m[0].Source, ":") != 0 || strings.Contains(m[0].Source, "..") && !strings.Contains(m[0].Source, "a_b_.._c") {
			t.Errorf("%+v, %v", m, err)
		}
	})
}

// TestCredentialMounts checks the mounts of credentials (contract, 19.2).
func TestCredentialMounts(t *testing.T) {
	home := t.TempDir()
	if err := errors.Join(os.Mkdir(home+"/dir", 0o755), os.WriteFile(home+"/token.json", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	var w warnings
	o := fakeOptions(t)
	o.Home, o.Credentials = home, []string{"dir", "missing", "token.json", "../escape", "/etc/shadow", "out", "in"}
	if err := errors.Join(os.Symlink("/etc/passwd", home+"/out"), os.Symlink("token.json", home+"/in")); err != nil {
		t.Fatal(err)
	}
	o.Warn = w.add
	s, err := buildSpec(o, Key{}, false, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"token.json", "in"} {
		if got := mountsAt(s, "/root/.hermes/"+name); len(got) != 1 || !got[0].ReadOnly || filepath.Base(got[0].Source) != "token.json" {
			t.Errorf("%s: %+v", name, got)
		}
	}
	for _, name := range []string{"dir", "missing", "escape", "shadow", "out"} {
		if got := mountsAt(s, "/root/.hermes/"+name); len(got) != 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if !w.contain("source is a directory") || !w.contain("source not found") || !w.contain("it leads out of the profile") || len(w.texts) != 5 {
		t.Errorf("%q", w.texts)
	}
}

// TestOwnInit checks images that have their own init (contract, 19.2).
func TestOwnInit(t *testing.T) {
	for name, c := range map[string]struct {
		image Image
		err   error
		own   bool
	}{
		"/init":    {Image{Entrypoint: []string{"/init"}}, nil, true},
		"s6":       {Image{Entrypoint: []string{"/package/admin/s6-overlay/command/init", "x"}}, nil, true},
		"a label":  {Image{Labels: map[string]string{LabelInit: "1"}}, nil, true},
		"plain":    {Image{Entrypoint: []string{"/bin/sh", "/init"}}, nil, false},
		"null":     {Image{}, nil, false},
		"failure":  {Image{Entrypoint: []string{"/init"}}, errFake, false},
		"no image": {Image{Entrypoint: []string{"/init"}}, ErrNoImage, false},
	} {
		f := newFake()
		f.image, f.failures["image"] = c.image, c.err
		if got := hasOwnInit(context.Background(), f, "x"); got != c.own {
			t.Errorf("%s: %v", name, got)
		}
		s, _ := buildTestSpec(t, nil, c.own, false)
		if exec := strings.Contains(mountsAt(s, "/run")[0].Options, ",exec,"); s.Init == c.own || exec != c.own {
			t.Errorf("%s: init %v, /run executable %v", name, s.Init, exec)
		}
	}
}

// TestForwardedEnvironment checks which variables are forwarded into a sandbox (contract, 19.3).
func TestForwardedEnvironment(t *testing.T) {
	home := t.TempDir()
	if err := os.WriteFile(home+"/.env", []byte("# a comment\nDOT=from file\nexport BOTH=file\nEMPTY='filled'\nQUOTED=\"a b\"\nBLANK=\nPROV_API_KEY=k\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("BOTH", "shell")
	t.Setenv("EMPTY", "")
	got := forwardedVariables(Options{Home: home, ForwardEnv: []string{"DOT", "BOTH", "EMPTY", "QUOTED", "BLANK", "NOWHERE", "PROV_API_KEY"}})
	want := map[string]string{"DOT": "from file", "BOTH": "shell", "EMPTY": "filled", "QUOTED": "a b", "PROV_API_KEY": "k"}
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s is %q, want %q", name, got[name], value)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%q", got)
	}
	t.Run("forwarded values reach no run and no command line", func(t *testing.T) {
		t.Setenv("SECRET", "hunter2")
		f := newFake()
		m := fakeManager(t, f, func(o *Options) {
			o.ForwardEnv, o.Env = []string{"SECRET"}, map[string]string{"SECRET": "literal", "PLAIN": "x"}
		})
		s := mustOpen(t, m, Key{})
		if _, err := s.Exec(t.Context(), Request{Command: "true"}); err != nil {
			t.Fatal(err)
		}
		if text := strings.Join(f.calls, "\n") + strings.Join(f.specs[0].Env, "\n"); strings.Contains(text, "hunter2") {
			t.Error(text)
		}
	})
}
