package shim

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
)

// A command of docker exec for an isolated profile must run isolated. As the agent's user it could read the files of all
// profiles.
func TestACommandForAnIsolatedProfileIsIsolated(t *testing.T) {
	testkit.NeedRoot(t)
	i := newImage(t, whoamiScript)
	must(t, os.MkdirAll(i.dir+"/run/hinit", 0o755))
	write(t, i.hinitPath, "#!/bin/sh\necho \"$@\"", 0o755)
	isolated := func(profile, words string) string {
		return "shell gateway-" + profile + " -- " + i.target + " " + words + "\n"
	}
	runCommand(t, i.command("-p", "a", "chat")).want(t, 0, agentIdentity, "")
	write(t, i.dir+"/run/hinit/isolated", "a\n", 0o644)
	runCommand(t, i.command("-p", "a", "chat")).want(t, 0, isolated("a", "-p a chat"), "")
	runCommand(t, i.command("chat", "--profile=a")).want(t, 0, isolated("a", "chat --profile=a"), "")
	runCommand(t, i.command("-p", "b", "chat")).want(t, 0, agentIdentity, "")
	runCommand(t, i.command("chat", "--", "-p", "a")).want(t, 0, agentIdentity, "")
	runCommand(t, i.command("chat")).want(t, 0, agentIdentity, "")
	// The agent converts names of profiles to lower case.
	runCommand(t, i.command("-p", "A", "chat")).want(t, 0, isolated("a", "-p A chat"), "")
	runCommand(t, i.command("--profile= a", "chat")).want(t, 0, isolated("a", "--profile= a chat"), "")
	// Without a name, the agent uses the profile from `hermes profile use`, or the profile whose home is HERMES_HOME.
	home := i.dir + "/data"
	must(t, os.MkdirAll(home+"/profiles/a", 0o755))
	chat := func(home string) *exec.Cmd {
		cmd := i.command("chat")
		cmd.Env = append(os.Environ(), append(cmd.Env, "HERMES_HOME="+home)...)
		return cmd
	}
	runCommand(t, chat(home)).want(t, 0, agentIdentity, "")
	runCommand(t, i.command()).want(t, 0, agentIdentity, "")
	runCommand(t, chat(home+"/profiles/a")).want(t, 0, isolated("a", "-p a chat"), "")
	runCommand(t, chat(home+"/profiles/b")).want(t, 0, agentIdentity, "")
	write(t, home+"/active_profile", "A\n", 0o644)
	runCommand(t, chat(home)).want(t, 0, isolated("a", "-p a chat"), "")
	write(t, home+"/active_profile", "b\n", 0o644)
	runCommand(t, chat(home)).want(t, 0, agentIdentity, "")
	// hinit shell must treat the name in active_profile as a profile, never as a service or a pattern.
	write(t, i.dir+"/run/hinit/isolated", "*\n-default\n", 0o644)
	write(t, home+"/active_profile", "db\n", 0o644)
	runCommand(t, chat(home)).want(t, 0, isolated("db", "-p db chat"), "")
	write(t, home+"/active_profile", "@all\n", 0o644)
	if r := runCommand(t, chat(home)); r.code != exitRefused || !strings.Contains(r.stderr, `"@all" is no name of a profile`) {
		t.Errorf("with a group as the choice: %+v", r)
	}
	// The list can have ten thousand names.
	var all strings.Builder
	for n := range 10_000 {
		fmt.Fprintf(&all, "customer-of-the-platform-%d\n", n)
	}
	write(t, i.dir+"/run/hinit/isolated", all.String(), 0o644)
	runCommand(t, i.command("-p", "customer-of-the-platform-9999", "chat")).want(t, 0, isolated("customer-of-the-platform-9999", "-p customer-of-the-platform-9999 chat"), "")
	write(t, i.dir+"/run/hinit/isolated", "*\n-default\n", 0o644)
	// A command about all profiles must not be isolated as the chosen profile.
	use := i.command("profile", "use", "default")
	use.Env = append(os.Environ(), append(use.Env, "HERMES_HOME="+home)...)
	runCommand(t, use).want(t, 0, agentIdentity, "")
	write(t, i.dir+"/run/hinit/isolated", "a\n", 0o644)
	must(t, os.Remove(home+"/active_profile"))
	must(t, unix.Mkfifo(home+"/active_profile", 0o644))
	if r := runCommand(t, chat(home)); r.code != exitRefused || !strings.Contains(r.stderr, "name a profile with -p") {
		t.Errorf("with a FIFO as the choice: %+v", r)
	}
	write(t, i.dir+"/run/hinit/isolated", "*\n-b\n", 0o644)
	runCommand(t, i.command("-p", "a", "chat")).want(t, 0, isolated("a", "-p a chat"), "")
	runCommand(t, i.command("-p", "b", "chat")).want(t, 0, agentIdentity, "")
	must(t, os.Chmod(i.dir+"/run/hinit/isolated", 0o666))
	if r := runCommand(t, i.command("-p", "a", "chat")); r.code != exitRefused {
		t.Errorf("with a list that others can change it runs: %+v", r)
	}
	must(t, os.Chmod(i.dir+"/run/hinit/isolated", 0o644))
	must(t, os.Remove(i.hinitPath))
	if r := runCommand(t, i.command("-p", "a", "chat")); r.code != exitRefused {
		t.Errorf("without hinit it runs: %+v", r)
	}
}

// With isolated profiles, hinit must list the profiles. The agent's own list would end with a permission error, or leave these
// profiles out.
func TestHinitListsTheProfilesWhereSomeAreIsolated(t *testing.T) {
	testkit.NeedRoot(t)
	i := newNativeImage(t)
	must(t, os.MkdirAll(i.dir+"/run/hinit", 0o755))
	const byAgent, byHinit = "agent 10000 /opt/data profile list\n", "native 10000 /opt/data "
	list := func() *exec.Cmd { return i.command("profile", "list") }
	runCommand(t, list()).want(t, 0, byAgent, "")
	write(t, i.dir+"/run/hinit/isolated", "", 0o644)
	runCommand(t, list()).want(t, 0, byAgent, "")
	write(t, i.dir+"/run/hinit/isolated", "a\n", 0o644)
	runCommand(t, list()).want(t, 0, byHinit+i.target+" profile list\n", "")
	runCommand(t, i.command("profile", "list", "--json")).want(t, 0, byAgent[:len(byAgent)-1]+" --json\n", "")
}
