package confine

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"hinit/internal/testkit"
)

// Real programs must be able to do in an isolated profile what docs/tutorial/two-customers.md says.
func TestTheToolsOfTheAgentWorkAsThePageSays(t *testing.T) {
	const python = `import os, subprocess, threading, multiprocessing
done = []
thread = threading.Thread(target=lambda: done.append("threads")); thread.start(); thread.join(); print(done[0], "work")
print(subprocess.run(["sh", "-c", "echo subprocess works"], capture_output=True, text=True).stdout)
for name, call in {"sched_setaffinity": lambda: os.sched_setaffinity(0, {0}), "multiprocessing.Lock": multiprocessing.Lock}.items():
    try: call(); print(name, "works")
    except OSError as e: print(name, "fails")
`
	const node = `const f = require("fs"), c = require("child_process"), w = require("worker_threads");
f.writeFileSync("g", "text of node"); console.log(f.readFileSync("g").toString(), c.execSync("echo child works").toString());
new w.Worker("console.log(\"worker works\")", {eval: true})`
	for _, tt := range []struct {
		program, script string
		want            []string
	}{
		{"git", `git init -q repo && cd repo && echo x >f && git add f && git -c user.name=a -c user.email=a@b commit -qm first &&
git log --format=%s && git clone -q . ../copy && cat ../copy/f && echo cloned`, []string{"first\n", "cloned"}},
		{"node", "node -e '" + node + "'", []string{"text of node", "child works", "worker works"}},
		{"sh", `echo a | sed s/a/b/ && mktemp >/dev/null && echo temporary`, []string{"b\n", "temporary"}},
		{"python3", "python3 - <<'EOF'\n" + python + "EOF", []string{
			"threads work", "subprocess works", "sched_setaffinity fails", "multiprocessing.Lock fails",
		}},
		{"chromium-headless-shell", `echo '<p>text of the page</p>' >p.html &&
timeout 60 chromium-headless-shell --no-sandbox --disable-dev-shm-usage --disable-gpu --dump-dom "file://$PWD/p.html"`, []string{"text of the page"}},
		{"su", `su -c 'echo as root' root </dev/null; echo x >/tmp/hinit-tools-test && echo wrote; echo ended`, []string{"ended"}},
	} {
		t.Run(tt.program, func(t *testing.T) {
			dir := accessibleDir(t, "own")
			path, err := exec.LookPath("/usr/bin/" + tt.program)
			if err != nil {
				t.Skip(tt.program + " of Debian is not installed")
			}
			if real, err := filepath.EvalSymlinks(path); err != nil || strings.HasPrefix(real, "/root/") {
				t.Skip(path + " is in a directory of root's")
			}
			t.Cleanup(func() { _ = os.Remove("/tmp/hinit-tools-test") })
			out := runIsolated(t, testkit.IsolationPlan{Name: "t", Home: dir + "/own"}, `cd "`+dir+`/own" && export HOME=$PWD && `+tt.script)
			for _, want := range tt.want {
				if !strings.Contains(out, want) {
					t.Errorf("it does not say %q:\n%s", want, out)
				}
			}
			for _, never := range []string{"as root", "wrote"} {
				if strings.Contains(out, never) {
					t.Errorf("it says %q:\n%s", never, out)
				}
			}
		})
	}
}
