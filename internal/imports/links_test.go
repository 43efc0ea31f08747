package imports

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hinit/internal/testkit"
)

// When root imports the configuration of an agent, hinit.yaml and the notes must contain nothing of root's files, even if the
// agent has linked or named them. Names in root's directories must not appear either.
func TestAnAgentReadAFileOfRootInTheConfigurationThatRootImported(t *testing.T) {
	testkit.NeedRoot(t)
	const secret = "sk-1234"
	for name, c := range map[string]struct {
		format   string
		text     string
		files    map[string]string
		link, to string
		imported string
	}{
		"a task of s6":              {S6, "echo " + secret, map[string]string{"src/job/type": "oneshot", "src/web/type": "longrun", "src/web/run": "#!/bin/sh"}, "src/job/up", "run", "src"},
		"a script of s6":            {S6, "#!" + secret, map[string]string{"src/web/type": "longrun", "src/api/run": "#!/bin/sh"}, "src/web/run", "run", "src"},
		"a directory of s6":         {S6, "#!" + secret, map[string]string{"src/api/run": "#!/bin/sh"}, "src/web", "", "src"},
		"a list of s6":              {S6, "", map[string]string{"src/all/type": "bundle", "src/web/run": "#!/bin/sh"}, "src/all/contents.d", "", "src"},
		"a layer of pebble":         {Pebble, "services: {a: {override: replace, command: " + secret + "}}", map[string]string{"layers/001-a.yaml": "services: {b: {override: replace, command: b}}"}, "layers/002-b.yaml", "run", "layers"},
		"a compose file":            {Compose, "services: {a: {command: " + secret + "}}", nil, "compose.yaml", "run", "compose.yaml"},
		"a file of process-compose": {ProcessCompose, "processes: {a: {command: " + secret + "}}", nil, "process-compose.yaml", "run", "process-compose.yaml"},
		"a unit":                    {Systemd, "[Service]\nExecStart=/bin/" + secret, nil, "a.service", "run", "a.service"},
		"a drop-in of a unit":       {Systemd, "[Service]\nExecStart=/bin/" + secret, map[string]string{"a.service": "[Service]\nType=exec"}, "a.service.d/x.conf", "run", "a.service"},
		"supervisord.conf":          {Supervisord, "[program:a]\ncommand=" + secret, nil, "supervisord.conf", "run", "supervisord.conf"},
		"an included link":          {Supervisord, "[program:a]\ncommand=" + secret, map[string]string{"s.conf": "[include]\nfiles=d/*\n[program:b]\ncommand=b"}, "d/x.conf", "run", "s.conf"},
		"included files of root":    {Supervisord, "", map[string]string{"s.conf": "[include]\nfiles=ROOT/*\n[program:b]\ncommand=b"}, "", "", "s.conf"},
		"an included file of root":  {Supervisord, "[program:a]\ncommand=" + secret, map[string]string{"s.conf": "[include]\nfiles=ROOT/run\n[program:b]\ncommand=b"}, "", "", "s.conf"},
	} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			roots, agents := filepath.Join(top, "root"), filepath.Join(top, "agent")
			put := func(path, text string) {
				t.Helper()
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			put(filepath.Join(roots, "run"), c.text)
			put(filepath.Join(roots, secret), "")
			for name, text := range c.files {
				put(filepath.Join(agents, name), strings.ReplaceAll(text, "ROOT", roots))
			}
			if c.link != "" {
				link := filepath.Join(agents, c.link)
				if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.Symlink(filepath.Join(roots, c.to), link)); err != nil {
					t.Fatal(err)
				}
			}
			err := filepath.WalkDir(agents, func(path string, _ os.DirEntry, err error) error {
				if err != nil {
					return err
				}
				return os.Lchown(path, 10000, 10000)
			})
			if err != nil {
				t.Fatal(err)
			}
			result, err := Convert(filepath.Join(agents, c.imported), c.format)
			if strings.Contains(string(result.YAML), secret) {
				t.Errorf("hinit.yaml has it, %v:\n%s", err, result.YAML)
			}
			for _, n := range result.Notes {
				if strings.Contains(n.String(), secret) {
					t.Errorf("a note has it: %s", n)
				}
			}
		})
	}
}
