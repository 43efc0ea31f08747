package e2e

import (
	"fmt"
	"strings"
	"testing"
)

func scriptEntry(name, content string) entry {
	return entry{name: name, content: "#!/bin/sh\n" + content + "\n", mode: 0o755}
}

// checkOrder returns an error with the first text that does not follow the one before it.
func checkOrder(s string, texts ...string) error {
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

// TestHooks checks users, order, timeout and failures of the hooks in hinit.yaml.
func TestHooks(t *testing.T) {
	parallel(t)
	c := start(t, setup{
		options: []string{"-e", "SEEN=yes"},
		files: mergeProfiles(profile("default", "running"), map[string]string{"/etc/hinit/hinit.yaml": `boot:
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
	c.awaitOutput(func(stdout, stderr string) error {
		out = stderr
		return checkContains(stdout, "Hermes Gateway Starting")
	})
	if err := checkOrder(out,
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

// TestBrowser checks that the environment leads processes to the image's browser (contract, section
// 2.1, step 19).
func TestBrowser(t *testing.T) {
	parallel(t)
	const browser = "/opt/hermes/.playwright/chromium-1/chrome-linux/chrome"
	where := []string{"-e", "PLAYWRIGHT_BROWSERS_PATH=/opt/hermes/.playwright"}
	c := create(t, setup{options: where, files: profile("default", "running")}, "sh", "-c", "echo $AGENT_BROWSER_EXECUTABLE_PATH; exec sleep 1000")
	c.writeEntries(
		entry{name: "/opt/hermes/.playwright/"}, entry{name: "/opt/hermes/.playwright/chromium-1/"},
		entry{name: "/opt/hermes/.playwright/chromium-1/chrome-linux/"},
		entry{name: browser, content: "a program", mode: 0o755},
		entry{name: "/opt/hermes/.playwright/chromium-1/chrome-linux/a-chrome.so", content: "a library", mode: 0o755},
	)
	c.start()
	c.awaitUp("gateway-default")
	c.awaitLines("[stage2] Found agent-browser Chromium binary: " + browser + "\n")
	c.awaitOutput(func(out, _ string) error { return checkContains(out, browser+"\n") })
	gateway, _ := c.status().find("gateway-default")
	if env := c.environ(gateway.PID); !strings.Contains(env, "\nAGENT_BROWSER_EXECUTABLE_PATH="+browser+"\n") {
		t.Errorf("the gateway has %s", env)
	}
	if got := c.mustExec("cat", "/run/s6/container_environment/AGENT_BROWSER_EXECUTABLE_PATH"); got != browser {
		t.Errorf("the tools of s6 would see %q", got)
	}
}
