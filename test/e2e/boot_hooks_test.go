package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// script is a program for a shell, to be laid into a container.
func script(name, content string) entry {
	return entry{name: name, content: "#!/bin/sh\n" + content + "\n", mode: 0o755}
}

// inOrder reports the first of the texts that does not come after the one before it.
func inOrder(s string, texts ...string) error {
	rest := s
	for _, text := range texts {
		_, after, ok := strings.Cut(rest, text)
		if !ok {
			return fmt.Errorf("no %q, or not in its place, in:\n%s", text, s)
		}
		rest = after
	}
	return nil
}

// TestImageHooks runs the agent's own programs as the agent, if they exist. These are the migration of its configuration and the
// sync of its skills (contract, section 2.1, steps 15 and 18). A failure is a warning.
func TestImageHooks(t *testing.T) {
	parallel(t)
	c := create(t, setup{}, "echo", "the CMD")
	c.lay(
		entry{name: "/opt/hermes/scripts/"}, entry{name: "/opt/hermes/tools/"},
		entry{name: "/opt/hermes/scripts/docker_config_migrate.py"}, entry{name: "/opt/hermes/tools/skills_sync.py"},
		script("/opt/hermes/.venv/bin/python", `echo "$1 as $(id -un) at home in $HOME" && [ "${1%migrate.py}" = "$1" ]`),
	)
	r := c.attach()
	if err := inOrder(r.err, // the two run side by side
		"docker_config_migrate.py as hermes at home in /opt/data\n",
		"[stage2] Warning: docker_config_migrate.py failed; continuing\n",
		"[stage2] Setup complete; starting user services\n",
	); err != nil || r.code != 0 || r.out != "the CMD\n" || !strings.Contains(r.err, "skills_sync.py as hermes at home in /opt/data\n") {
		t.Errorf("%v: %v", err, r)
	}
	if strings.Contains(r.err, "skills_sync.py failed") {
		t.Errorf("what went well is called a failure: %s", r.err)
	}
}

// TestHooks has hooks of the user's own in hinit.yaml: users, order, timeout, a failure that is only said.
func TestHooks(t *testing.T) {
	parallel(t)
	c := start(t, setup{
		options: []string{"-e", "SEEN=yes"},
		files: together(profile("default", "running"), map[string]string{"/etc/hinit/hinit.yaml": `boot:
  hooks:
  - {command: [/bin/sh, -c, 'echo "first as $(id -un):$(id -G) at $HOME, seen $SEEN"; touch /opt/data/by-first']}
  - {command: [/bin/sh, -c, 'echo "second as $(id -un)"; exit 7'], user: root}
  - {command: [/bin/sleep, '1001'], timeout: 200ms}
  - {command: [/nowhere/to/be/found]}
  - {command: [/bin/echo, skipped], if_exists: /nowhere}
  - {command: [/bin/sh, -c, 'ps -o args | grep -c "[g]ateway run"; echo last']}
`}),
	}, "sleep", "1000")
	c.awaitUp("gateway-default")
	out := ""
	c.awaitOutput(func(stdout, stderr string) error { out = stderr; return has(stdout, "Hermes Gateway Starting") })
	if err := inOrder(out,
		"first as hermes:10000 at /opt/data, seen yes\n", "second as root\n", "[stage2] Warning: sh failed; continuing\n",
		"[stage2] Warning: sleep failed; continuing\n", "[stage2] Warning: found failed; continuing\n", "0\nlast\n",
		"[stage2] Setup complete; starting user services\n",
	); err != nil {
		t.Error(err)
	}
	if strings.Contains(out, "skipped") || strings.Contains(out, "first failed") || len(c.matching("sleep 1001")) > 0 {
		t.Errorf("skipped hook, hook that is over time: %s %+v", out, c.processes())
	}
	sameOwners(t, c.owners("/opt/data/by-first"), map[string]string{"/opt/data/by-first": "hermes:hermes 644"})
	failed := 0
	for _, step := range c.status().Init.Boot {
		if step.Error != "" {
			failed++
		}
	}
	if failed != 3 {
		t.Errorf("the timeline has %d failures, want 3: %+v", failed, c.status().Init.Boot)
	}
}

// TestHookStopsTheBoot has a hook without which the container must not run.
func TestHookStopsTheBoot(t *testing.T) {
	parallel(t)
	const failing = "command: [/bin/false]"
	tests := []struct {
		name, config string
		options      []string
	}{
		{name: "required", config: "boot: {hooks: [{" + failing + ", required: true}, {command: [/bin/echo, the next hook]}]}"},
		{name: "strict", config: "boot: {strict: true, hooks: [{" + failing + "}, {command: [/bin/echo, the next hook]}]}"},
		{name: "strict by the environment", config: "boot: {hooks: [{" + failing + "}, {command: [/bin/echo, the next hook]}]}", options: []string{"-e", "HINIT_BOOT_STRICT=1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			parallel(t)
			c := create(t, setup{
				options: tt.options,
				files:   together(profile("default", "running"), map[string]string{"/etc/hinit/hinit.yaml": tt.config + "\n"}),
			}, "echo", "the CMD")
			r := c.attach()
			if r.code == 0 || !strings.Contains(r.err, "\n[hinit] fatal: stopping the container\n") {
				t.Errorf("want a failure that is said: %v", r)
			}
			for _, text := range []string{"the CMD", "the next hook", "Gateway Starting"} {
				if strings.Contains(r.out, text) {
					t.Errorf("%q came all the same: %v", text, r)
				}
			}
		})
	}
}

// TestContInit runs the user's own boot scripts: as root, in the order of their bytes, with the environment of the container,
// before anything is started (contract, section 2). Those that hinit does the work of are skipped, and one that fails stops
// nothing. A process that a script leaves running stays.
func TestContInit(t *testing.T) {
	parallel(t)
	c := create(t, setup{options: []string{"-e", "SEEN=a b"}, files: profile("default", "running")}, "sh", "-c", "echo the CMD; exec sleep 1000")
	c.lay(
		entry{name: "/etc/cont-init.d/"},
		script("/etc/cont-init.d/01-hermes-setup", "echo replaced"),
		script("/etc/cont-init.d/015-supervise-perms", "echo replaced"),
		script("/etc/cont-init.d/02-reconcile-profiles", "echo replaced"),
		script("/etc/cont-init.d/10-b", `echo "ten as $(id -u):$(id -g) with $# arguments, seen $SEEN; $(stat -c %U /opt/data/cron)"; exit 3`),
		script("/etc/cont-init.d/9-last", "echo nine; (sleep 1002 >/dev/null 2>&1 &)"),
		script("/etc/cont-init.d/10-B", "echo TEN"),
		entry{name: "/etc/cont-init.d/20-no-program", content: "#!/bin/sh\necho no program\n"},
		entry{name: "/etc/cont-init.d/30-of-the-agent", content: "#!/bin/sh\necho of the agent\n", mode: 0o755, owner: 10000},
		entry{name: "/etc/cont-init.d/40-no-such-interpreter", content: "#!/nowhere\n", mode: 0o755},
	)
	c.start()
	c.awaitUp("gateway-default")
	var out, stderr string
	c.awaitOutput(func(o, e string) error {
		out, stderr = o, e
		return errors.Join(has(out, "the CMD\n"), has(stderr, "[hinit] boot: ")) // each is the last of its stream
	})
	if err := inOrder(stderr, "TEN\n", "ten as 0:0 with 0 arguments, seen a b; hermes\n", "nine\n", "[stage2] Setup complete; starting user services\n"); err != nil {
		t.Error(err)
	}
	if err := inOrder(stderr,
		"cont-init: info: running /etc/cont-init.d/10-B\n", "cont-init: info: /etc/cont-init.d/10-B exited 0\n",
		"cont-init: info: running /etc/cont-init.d/10-b\n", "cont-init: info: /etc/cont-init.d/10-b exited 3\n",
		"cont-init: info: running /etc/cont-init.d/40-no-such-interpreter\n", "cont-init: warning: /etc/cont-init.d/40-no-such-interpreter failed: ",
		"cont-init: info: running /etc/cont-init.d/9-last\n", "cont-init: info: /etc/cont-init.d/9-last exited 0\n",
	); err != nil {
		t.Error(err)
	}
	for _, text := range []string{
		"cont-init: info: skipping /etc/cont-init.d/01-hermes-setup", "cont-init: info: skipping /etc/cont-init.d/015-supervise-perms",
		"cont-init: info: skipping /etc/cont-init.d/02-reconcile-profiles",
		"cont-init: warning: skipping /etc/cont-init.d/20-no-program: it cannot be executed",
		"cont-init: warning: skipping /etc/cont-init.d/30-of-the-agent: the agent's user can write it",
	} {
		if !strings.Contains(stderr, text) {
			t.Errorf("not said: %s\n%s", text, stderr)
		}
	}
	for _, text := range []string{"replaced", "no program", "of the agent"} {
		if strings.Contains(out, text) {
			t.Errorf("%q was run", text)
		}
	}
	daemon := func() bool { return len(c.matching("^sleep 1002")) == 1 }
	eventually(t, settle, func() error { // the script does not wait until it is there
		if !daemon() {
			return fmt.Errorf("the daemon of a boot script is not there: %+v", c.processes())
		}
		return nil
	})
	never(t, "the daemon of a boot script is gone", func() error {
		if daemon() {
			return errors.New("it is there")
		}
		return nil
	})
	st := c.status()
	if !slices.ContainsFunc(st.Init.Warnings, func(w string) bool { return strings.Contains(w, "10-b exited 3") }) {
		t.Errorf("the status does not have the failure: %q", st.Init.Warnings)
	}
	for name := range st.set() {
		if strings.HasPrefix(name, "hook") {
			t.Errorf("a hook that is over is still listed: %v", st.set())
		}
	}
}

// TestBrowser looks for the browser of the image and tells whoever is started later (contract, section 2.1, step 19).
func TestBrowser(t *testing.T) {
	parallel(t)
	const browser = "/opt/hermes/.playwright/chromium-1/chrome-linux/chrome"
	lay := func(c *container) {
		c.lay(
			entry{name: "/opt/hermes/.playwright/"}, entry{name: "/opt/hermes/.playwright/chromium-1/"},
			entry{name: "/opt/hermes/.playwright/chromium-1/chrome-linux/"},
			entry{name: "/opt/hermes/.playwright/chromium-1/chrome-linux/chrome", content: "a program", mode: 0o755},
			entry{name: "/opt/hermes/.playwright/chromium-1/chrome-linux/a-chrome.so", content: "a library", mode: 0o755},
		)
	}
	where := []string{"-e", "PLAYWRIGHT_BROWSERS_PATH=/opt/hermes/.playwright"}
	c := create(t, setup{options: where, files: profile("default", "running")}, "sh", "-c", "echo $AGENT_BROWSER_EXECUTABLE_PATH; exec sleep 1000")
	lay(c)
	c.start()
	c.awaitUp("gateway-default")
	c.awaitLines("[stage2] Found agent-browser Chromium binary: " + browser + "\n")
	c.awaitOutput(func(out, _ string) error { return has(out, browser+"\n") })
	gateway, _ := c.status().find("gateway-default")
	if env := c.environ(gateway.PID); !strings.Contains(env, "\nAGENT_BROWSER_EXECUTABLE_PATH="+browser+"\n") {
		t.Errorf("the gateway has %s", env)
	}
	if got := c.must("cat", "/run/s6/container_environment/AGENT_BROWSER_EXECUTABLE_PATH"); got != browser {
		t.Errorf("the tools of s6 would see %q", got)
	}

	const mine = "AGENT_BROWSER_EXECUTABLE_PATH=/usr/bin/mine"
	c = create(t, setup{options: append([]string{"-e", mine}, where...)}, "sh", "-c", "echo $AGENT_BROWSER_EXECUTABLE_PATH")
	lay(c)
	if r := c.attach(); r.last() != "/usr/bin/mine" || strings.Contains(r.out, "Found") {
		t.Errorf("the user's own is overruled: %v", r)
	}
}
