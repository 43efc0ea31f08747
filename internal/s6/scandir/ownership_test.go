package scandir

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"hinit/internal/testkit"
)

func makeRootDir(t *testing.T, g Layout, name string) string {
	t.Helper()
	dir := filepath.Join(g.ScanDir, name)
	must(t, writeServiceDir(dir, map[string]string{
		"run": "#!/bin/sh\nexec s6-envdir env sleep 1000\n", "env/PATH": "/bin", "data/rules/allow": "", "type": "longrun\n", "timeout-kill": "1000\n",
		"log/run": "#!/bin/sh\n",
	}))
	return dir
}

func TestAServiceWhoseEnvironmentTheAgentCanWriteDoesNotRunAsRoot(t *testing.T) {
	t.Parallel()
	testkit.NeedRoot(t)
	g, h := newLayout(t), newHost()
	s := openScanner(t, h, g)
	spoil := map[string]func(dir string) error{
		"loose-env":         func(dir string) error { return os.Chmod(dir+"/env", 0o777) },
		"agents-env":        func(dir string) error { return os.Chown(dir+"/env", agentUID, agentGID) },
		"agents-variable":   func(dir string) error { return os.Chown(dir+"/env/PATH", agentUID, agentGID) },
		"loose-variable":    func(dir string) error { return os.Chmod(dir+"/env/PATH", 0o666) },
		"link-env":          func(dir string) error { return os.Rename(dir+"/env", dir+"/x") },
		"agents-data":       func(dir string) error { return os.Chown(dir+"/data/rules/allow", agentUID, agentGID) },
		"loose-down-signal": func(dir string) error { return os.WriteFile(dir+"/down-signal", []byte("KILL"), 0o666) },
		"too-deep": func(dir string) error {
			return os.MkdirAll(dir+"/data/1/2/3/4/5/6/7/8/9/10/11/12/13/14/15/16/17", 0o755)
		},
		"too-many": func(dir string) error {
			for i := range 4096 {
				if err := os.WriteFile(fmt.Sprintf("%s/data/%d", dir, i), nil, 0o644); err != nil {
					return err
				}
			}
			return nil
		},
	}
	for name, f := range spoil {
		dir := makeRootDir(t, g, name)
		must(t, f(dir))
	}
	must(t, os.Symlink("x", g.ScanDir+"/link-env/env"))
	must(t, os.Chmod(g.ScanDir+"/loose-down-signal/down-signal", 0o666))
	kept := makeRootDir(t, g, "kept")
	must(t, os.MkdirAll(kept+"/event", 0o755))
	must(t, os.Chmod(kept+"/event", 0o1730))
	logged := makeRootDir(t, g, "agents-logger")
	must(t, os.Chown(logged+"/log/run", agentUID, agentGID))
	must(t, s.Scan(t.Context()))
	for name := range spoil {
		if u := h.unit(name); u.Name == "" || u.Spec.Cred == nil || u.OpenDir != nil {
			t.Errorf("%s is run as root: %+v", name, u.Spec)
		}
		if h.countMessages("/"+name+": it is not run as root") != 1 {
			t.Errorf("nobody is told why %s is not run as root, or more than once", name)
		}
	}
	for name, root := range map[string]bool{"kept": true, "kept/log": true, "agents-logger": true, "agents-logger/log": false} {
		if u := h.unit(name); u.Name == "" || (u.Spec.Cred == nil) != root {
			t.Errorf("%s is run as root: %v, want %v", name, !root, root)
		}
	}
}

func TestAServiceThatRootGivesAwayIsNotRunAsRootAnyMore(t *testing.T) {
	testkit.NeedRoot(t)
	g, h := newLayout(t), newHost()
	s := openScanner(t, h, g)
	dir := makeRootDir(t, g, "given")
	closed := makeRootDir(t, g, "closed")
	must(t, os.Chmod(closed, 0o700))
	must(t, s.Scan(t.Context()))
	for _, name := range []string{"given", "given/log", "closed"} {
		if u := h.unit(name); u.Name == "" || u.Spec.Cred != nil {
			t.Fatalf("%s: %+v", name, u.Spec)
		}
	}
	give := func(uid, gid int) {
		must(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Lchown(path, uid, gid)
		}))
	}
	give(agentUID, agentGID)
	must(t, os.Chown(closed+"/run", agentUID, agentGID))
	for _, name := range []string{"given", "closed"} {
		must(t, s.Refresh(t.Context(), name)) // hinit does this at the end of every run
	}
	for _, name := range []string{"given", "given/log", "closed"} {
		if u := h.unit(name); u.Spec.Cred == nil || u.OpenDir != nil {
			t.Errorf("%s is still run as root: %+v", name, u.Spec)
		}
	}
	if slot, err := s.Find(t.Context(), dir); err != nil || !slot.NormallyUp() {
		t.Errorf("%v, %v", slot, err)
	}
	give(0, 0)
	must(t, s.Refresh(t.Context(), "given"))
	if u := h.unit("given"); u.Spec.Cred != nil || u.OpenDir == nil {
		t.Errorf("root has it back, and it is run as %+v", u.Spec.Cred)
	}
}
