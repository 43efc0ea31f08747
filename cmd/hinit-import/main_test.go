package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"hinit/internal/testkit"
)

func TestAnAgentChoseWhereRootWroteItsNewConfiguration(t *testing.T) {
	testkit.NeedRoot(t)
	top := t.TempDir()
	from, roots, agents := filepath.Join(top, "supervisord.conf"), filepath.Join(top, "root"), filepath.Join(top, "agent")
	err := errors.Join(
		os.WriteFile(from, []byte("[program:a]\ncommand=a\n"), 0o644), os.Mkdir(roots, 0o755), os.Mkdir(agents, 0o755),
		os.Symlink(roots, filepath.Join(agents, "link")), os.Lchown(filepath.Join(agents, "link"), 10000, 10000), os.Chown(agents, 10000, 10000),
	)
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	if code := run([]string{from, "-o", filepath.Join(agents, "link", "hinit.yaml")}, &out, &errs); code == 0 {
		t.Errorf("%s%s", &out, &errs)
	}
	if _, err := os.Lstat(filepath.Join(roots, "hinit.yaml")); err == nil {
		t.Error("the file is in root's directory")
	}
	file := filepath.Join(agents, "hinit.yaml")
	if code := run([]string{from, "-o", file}, &out, &errs); code != 0 {
		t.Fatalf("%s%s", &out, &errs)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("its mode is %v, %v", st.Mode(), err)
	}
}
