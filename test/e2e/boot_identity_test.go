package e2e

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestRemap checks that the agent's user gets other IDs in /etc, and can write the volume. A second
// boot must change nothing (contract, section 2.1, step 3).
func TestRemap(t *testing.T) {
	parallel(t)
	tests := []struct {
		name     string
		env      []string
		uid, gid string
		home     string // Owner of the data directory, if it differs; then only the uid changes.
		said     string
	}{
		{name: "hermes", env: []string{"HERMES_UID=1000", "HERMES_GID=1000"}, uid: "1000", gid: "1000", said: "[stage2] Changing hermes GID to 1000"},
		{name: "a group that exists", env: []string{"PGID=65534"}, uid: "10000", gid: "65534", home: "10000:10000"},
	}
	const script = `echo "$(id -u):$(id -g) $(id -u hermes):$(id -g hermes)"
touch /opt/data/written
stat -c %u:%g /opt/data
stat -c %u:%g /opt/data/written /opt/data/cron /opt/data/logs/gateways | sort -u`
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			parallel(t)
			var options []string
			for _, e := range tt.env {
				options = append(options, "-e", e)
			}
			c := create(t, setup{options: options}, "sh", "-c", script)
			ids := tt.uid + ":" + tt.gid
			want := fmt.Sprintf("%[1]s %[1]s\n%s\n%[1]s\n", ids, cmp.Or(tt.home, ids))
			first := c.attach()
			if first.code != 0 || first.out != want || !strings.Contains(first.err, tt.said) {
				t.Errorf("want %q with %q: %v", want, tt.said, first)
			}
			second := c.attach()
			if second.code != 0 || second.out != want || strings.Contains(second.err, "Changing") || strings.Contains(second.err, "Fixing") {
				t.Errorf("the second boot: %v", second)
			}
		})
	}
}

// TestRemapGateway checks the IDs of a gateway, of a process that docker exec runs through the shim, and of files that existed
// before the change.
func TestRemapGateway(t *testing.T) {
	parallel(t)
	c := start(t, setup{options: []string{"-e", "PUID=1000", "-e", "PGID=1000"}, files: threeProfiles()}, "gateway", "run")
	c.awaitUp("gateway-default", "gateway-coder")
	gateway, _ := c.status().find("gateway-coder")
	if owner := c.mustExec("stat", "-c", "%u:%g", fmt.Sprintf("/proc/%d", gateway.PID)); owner != "1000:1000" {
		t.Errorf("the gateway runs as %s", owner)
	}
	c.mustExec("hermes", "config", "set", "k", "v")
	eventually(t, settle, func() error {
		if left := strings.TrimSpace(c.exec("find", "/opt/data", "!", "-user", "1000", "!", "-name", "SOUL.md", "!", "-name", "agent.conf").out); left != "" {
			return fmt.Errorf("not the agent's: %s", left)
		}
		return nil
	})
	mustDocker(t, "restart", c.id)
	c.awaitStates(map[string]string{"gateway-default": "up", "gateway-coder": "up", "gateway-writer": "down"})
}

// TestRemapRefused checks that a container does not start with another user's uid, because the
// agent would share that user's files.
func TestRemapRefused(t *testing.T) {
	parallel(t)
	r := runContainer(t, []string{"-e", "HERMES_UID=65534"}, "echo", "the CMD was run")
	if r.code != 1 || strings.Contains(r.out, "the CMD was run") {
		t.Errorf("want exit code 1 and no CMD: %v", r)
	}
	for _, text := range []string{"65534", "nobody", "HERMES_UID", "PUID"} {
		if !strings.Contains(r.err, text) {
			t.Errorf("the reason does not have %q: %s", text, r.err)
		}
	}
}

// TestUserFlag checks docker run --user with the agent's user.
func TestUserFlag(t *testing.T) {
	parallel(t)
	r := runContainer(t, []string{"--user", "hermes", "-e", "HERMES_UID=1000"}, "sh", "-c", "echo $HOME; touch /opt/data/x && id -u")
	if r.code != 0 || r.out != "/opt/data\n10000\n" {
		t.Errorf("want to be let in as who it is: %v", r)
	}
	for _, text := range []string{"started as uid 10000: ", "HERMES_UID has no effect"} {
		if strings.Count(r.out+r.err, text) != 1 {
			t.Errorf("want %q once: %v", text, r)
		}
	}
}

// TestAnyUser checks an arbitrary uid, as some platforms choose. All features must work that need
// no change of user.
func TestAnyUser(t *testing.T) {
	parallel(t)
	volume := newVolume(t, "chown 12345:0 .; chmod 770 .")
	c := start(t, setup{options: []string{
		"--user", "12345:0", "-e", "HINIT_ALLOW_ANY_UID=1", "-e", "HERMES_GATEWAY_BOOTSTRAP_STATE=running", "-v", volume + ":/opt/data:nocopy",
	}}, "sleep", "1000")
	c.awaitUp("gateway-default")
	c.awaitLog("started as uid 12345, which is not hermes: everything runs as that uid")
	for _, step := range [][]string{
		{"hermes", "profile", "create", "coder"},
		{"hinit", "start", "coder"},
		{"hinit", "restart", "coder"},
		{"hinit", "stop", "coder"},
		{"hinit", "start", "coder"},
		{"hinit", "logs", "coder"},
	} {
		c.mustExec(step...)
	}
	c.awaitHealthy()
	c.awaitOwned("12345", "/opt/data")
	if mode := c.mustExec("stat", "-c", "%a", "/opt/data/gateway_state.json"); mode != "644" {
		t.Errorf("the state has mode %s", mode)
	}
	mustDocker(t, "restart", c.id)
	c.awaitStates(map[string]string{"gateway-default": "up", "gateway-coder": "up"})
}

// TestDockerSocket checks that the agent gets the groups of the Docker socket and of /dev/dri at
// each boot, but never root's group.
func TestDockerSocket(t *testing.T) {
	parallel(t)
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	gid := os.Getgid()
	if os.Geteuid() == 0 {
		gid = 4321
		if err := os.Chown(socket, 0, gid); err != nil {
			t.Fatal(err)
		}
	}
	nodes := newVolume(t, `mknod card0 c 226 0; chgrp 65534 card0
mknod renderD128 c 226 128; chgrp 4322 renderD128
mknod renderD129 c 226 129; chgrp 4322 renderD129
mknod card1 c 226 1`)
	c := start(t, setup{
		options: []string{"-v", socket + ":/var/run/docker.sock", "-v", nodes + ":/dev/dri"}, files: profile("default", "running"),
	}, "sh", "-c", `echo "process $(id -G)"; echo "user $(id -G hermes)"; id; grep hermes /etc/group; echo the CMD; exec sleep 1000`)
	groups := []string{"10000", "4322", "65534", strconv.Itoa(gid)}
	slices.Sort(groups)
	want := strings.Join(groups, " ")
	sorted := func(line string) string { return strings.Join(slices.Sorted(strings.FieldsSeq(line)), " ") }
	boot := func(before string) (out, stderr string) {
		t.Helper()
		c.awaitUp("gateway-default")
		c.awaitOutput(func(o, e string) error {
			out, stderr = o, strings.TrimPrefix(e, before)
			return errors.Join(checkContains(o, "the CMD\n"), checkContains(stderr, "[hinit] boot: "))
		})
		return out, stderr
	}
	out, first := boot("")
	for _, of := range []string{"process ", "user "} {
		_, line, _ := strings.Cut("\n"+out, "\n"+of)
		if line, _, _ = strings.Cut(line, "\n"); sorted(line) != want {
			t.Errorf("the groups of the %sare %s, want %s", of, line, want)
		}
	}
	if err := checkContains(out, fmt.Sprintf("%d(hostdocker)", gid), "nogroup:x:65534:hermes\n", ":4322:hermes\n"); err != nil || strings.Count(out, ":4322:") != 1 {
		t.Errorf("%v: %s", err, out)
	}
	if err := checkContains(first,
		fmt.Sprintf("[stage2] Created group hostdocker (GID %d) for Docker socket\n", gid),
		fmt.Sprintf("[stage2] Added hermes to group hostdocker (GID %d) for /var/run/docker.sock\n", gid),
		// The line must have the group's existing name.
		"[stage2] Added hermes to group nogroup (GID 65534) for /dev/dri/card0\n",
		"(GID 4322) for /dev/dri/renderD128\n",
	); err != nil {
		t.Error(err)
	}
	gateway, _ := c.status().find("gateway-default")
	if got := c.mustExec("grep", "^Groups:", fmt.Sprintf("/proc/%d/status", gateway.PID)); sorted(strings.TrimPrefix(got, "Groups:")) != want {
		t.Errorf("the gateway has %s, want %s", got, want)
	}
	_, before := c.logs()
	mustDocker(t, "restart", c.id)
	_, second := boot(before)
	if already := fmt.Sprintf("[stage2] hermes already in group %d for /var/run/docker.sock\n", gid); strings.Count(second, already) != 1 || strings.Count(second, "group ") != 1 {
		t.Errorf("the second boot: %s", second)
	}
}

// TestReadOnlyPasswd checks a container with a read-only /etc/passwd. Processes and files must have
// the requested IDs, and a warning must mention the user names.
func TestReadOnlyPasswd(t *testing.T) {
	parallel(t)
	volume := newVolume(t, "")
	r := runContainer(t, []string{"--read-only", "--tmpfs", "/run", "-e", "HERMES_UID=1234", "-e", "HERMES_GID=1235", "-v", volume + ":/opt/data"},
		"sh", "-c", "touch /opt/data/x; stat -c %u:%g /opt/data/x /opt/data/logs; id -u hermes")
	if r.code != 0 || r.out != "1234:1235\n1234:1235\n10000\n" {
		t.Errorf("want files of 1234:1235: %v", r)
	}
	for _, text := range []string{
		`read-only file system: the agent runs with the ids 1234:1235, but tools that read /etc show others`,
		readOnlyRoot,
	} {
		if strings.Count(r.out+r.err, text) != 1 {
			t.Errorf("want %q once: %v", text, r)
		}
	}
	if strings.Contains(r.err, noRun) {
		t.Errorf("with a tmpfs on /run: %v", r)
	}
}
