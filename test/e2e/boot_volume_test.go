package e2e

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// sameOwners compares owners and modes.
func sameOwners(t *testing.T, got, want map[string]string) {
	t.Helper()
	for _, path := range slices.Sorted(maps.Keys(want)) {
		if got[path] != want[path] {
			t.Errorf("%s is %s, want %s", path, got[path], want[path])
		}
	}
}

// TestBootstrapState checks that a new volume gets the initial state "running" (contract, section
// 2.1, step 17).
func TestBootstrapState(t *testing.T) {
	parallel(t)
	const variable = "HERMES_GATEWAY_BOOTSTRAP_STATE="
	c := start(t, setup{options: []string{"-e", variable + "running"}}, "sleep", "1000")
	c.awaitUp("gateway-default")
	sameOwners(t, c.owners("/opt/data/gateway_state.json"), map[string]string{"/opt/data/gateway_state.json": "hermes:hermes 644"})
	c.awaitFile("/opt/data/logs/container-boot.log", "profile=default prior_state=running action=started")
}

// TestSeeds checks the files that a boot creates on a new volume, and that later boots keep changes
// (contract, section 2.1, steps 10 to 16).
func TestSeeds(t *testing.T) {
	parallel(t)
	const auth = "{\"token\": \"a 'b' $c\"}"
	c := create(t, setup{
		options: []string{"-e", "HERMES_AUTH_JSON_BOOTSTRAP=" + auth},
		files: map[string]string{
			"/opt/hermes/.env.example":            "# keys\nAPI_SERVER_KEY=\nOTHER=1\n",
			"/opt/hermes/cli-config.yaml.example": "model: example\n",
			"/opt/hermes/docker/SOUL.md":          "Kind.\n",
			"/opt/data/.install_method":           " docker\n",
		},
	}, "sleep", "1000")
	c.start()
	c.awaitStates(map[string]string{"gateway-default": "down"})
	files := map[string]string{
		"/opt/data/.env": "hermes:hermes 600", "/opt/data/config.yaml": "hermes:hermes 640", "/opt/data/SOUL.md": "hermes:hermes 644",
		"/opt/data/auth.json": "hermes:hermes 600",
	}
	for dir := range strings.FieldsSeq("cron sessions logs logs/gateways hooks memories skills skins plans workspace home pairing platforms/pairing") {
		files["/opt/data/"+dir] = "hermes:hermes 755"
	}
	sameOwners(t, c.owners(slices.Sorted(maps.Keys(files))...), files)
	if got := c.mustExec("cat", "/opt/data/auth.json"); got != auth {
		t.Errorf("the credentials are %q", got)
	}
	env := c.mustExec("cat", "/opt/data/.env")
	if !matches(`^# keys\nOTHER=1\nAPI_SERVER_KEY=[0-9a-f]{64}$`, env) {
		t.Errorf(".env is %q", env)
	}
	for path, want := range map[string]string{"config.yaml": "model: example", "SOUL.md": "Kind."} {
		if got := c.mustExec("cat", "/opt/data/"+path); got != want {
			t.Errorf("%s is %q", path, got)
		}
	}
	if r := c.exec("test", "-e", "/opt/data/.install_method"); r.code == 0 {
		t.Error("the install stamp is still there")
	}
	c.mustExec("test", "-e", "/opt/hermes/.install_method")

	c.mustExec("sh", "-ec", `cd /opt/data
echo mine >auth.json
echo mine >config.yaml
rm SOUL.md; mkdir skills/mine
chmod 666 .env; chown root auth.json
echo pip >.install_method`)
	mustDocker(t, "restart", c.id)
	c.awaitStates(map[string]string{"gateway-default": "down"})
	sameOwners(t, c.owners(slices.Sorted(maps.Keys(files))...), files)
	for path, want := range map[string]string{"auth.json": "mine", "config.yaml": "mine", "SOUL.md": "Kind.", ".install_method": "pip", ".env": env} {
		if got := c.mustExec("cat", "/opt/data/"+path); got != want {
			t.Errorf("after the second boot %s is %q", path, got)
		}
	}
}

// TestAuthHome checks credentials in another directory (contract, section 2.1, step 16).
func TestAuthHome(t *testing.T) {
	parallel(t)
	r := runContainer(t, []string{"-e", "HERMES_AUTH_HOME=/opt/data/keys/deep", "-e", "HERMES_AUTH_JSON_BOOTSTRAP=secret"}, "sh", "-c",
		"cat /opt/data/auth.json; stat -c '%U %a' $HERMES_AUTH_HOME/auth.json; cat $HERMES_AUTH_HOME/auth.json")
	if r.out != "hermes 600\nsecret" || !strings.Contains(r.err, "can't open '/opt/data/auth.json'") {
		t.Errorf("want the credentials there, and none in the data directory: %v", r)
	}
}

// TestHomeOverride checks a HOME other than the data directory, which hinit must create for the
// agent (contract, sections 2.1 and 3).
func TestHomeOverride(t *testing.T) {
	parallel(t)
	c := start(t, setup{
		options: []string{"-e", "HERMES_REAL_HOME=/home/deep/me", "-e", "HERMES_DASHBOARD=1", "-e", "HERMES_DASHBOARD_INSECURE=1", "-w", "/tmp"},
		files:   profile("default", "running"),
		// The command writes a single line, because other processes write to the same output.
	}, "sh", "-c", `touch ~/written; echo "cmd: $HOME $PWD"; exec sleep 1000`)
	c.awaitUp("gateway-default", "dashboard")
	c.awaitLog("cmd: /home/deep/me /tmp\n")
	for _, name := range []string{"gateway-default", "dashboard"} {
		s, _ := c.status().find(name)
		if env := c.environ(s.PID); !strings.Contains(env, "\nHOME=/home/deep/me\n") || !strings.Contains(env, "\nHERMES_HOME=/opt/data\n") {
			t.Errorf("%s has %s", name, env)
		}
	}
	sameOwners(t, c.owners("/home/deep/me", "/home/deep"), map[string]string{"/home/deep/me": "hermes:hermes 755", "/home/deep": "root:root 755"})
	c.mustExec("test", "-O", "/home/deep")
	if r := c.execAs([]string{"-u", "hermes"}, "test", "-f", "/home/deep/me/written"); r.code != 0 {
		t.Error(r)
	}

	// The data directory is elsewhere, and its parents do not exist.
	r := runContainer(t, []string{"-e", "HERMES_HOME=/home/hermes/.hermes"}, "sh", "-c", "echo $HOME; pwd; stat -c %U $HERMES_HOME $HERMES_HOME/cron")
	if r.code != 0 || r.out != "/home/hermes/.hermes\n/opt/hermes\nhermes\nhermes\n" {
		t.Errorf("another data directory: %v", r)
	}
}

// TestRepair checks that files of the agent that root has taken over get their owner back. hinit must repair the files that a
// gateway needs before the gateway starts (contract, section 2.1, steps 5 and 6).
func TestRepair(t *testing.T) {
	parallel(t)
	c := start(t, setup{files: threeProfiles()}, "gateway", "run")
	c.awaitUp("gateway-default", "gateway-coder")
	c.mustExec("sh", "-ec", `cd /opt/data
mkdir -p profiles/coder/deep/er cron/jobs platforms/pairing
touch profiles/coder/deep/er/file cron/jobs/file platforms/pairing/file cron/state workspace/of-the-host sessions/of-the-host
ln -s /etc/passwd cron/link
chown root:root profiles/coder profiles/coder/gateway_state.json profiles/coder/gateway.lock logs/gateways
chmod 600 profiles/coder/gateway_state.json
chmod 700 profiles/coder/deep/er`)
	mustDocker(t, "restart", c.id)
	c.awaitUp("gateway-default", "gateway-coder")
	c.awaitOwned("hermes", "/opt/data/profiles", "/opt/data/cron", "/opt/data/platforms", "/opt/data/logs")
	c.awaitRepair()
	sameOwners(t, c.owners("/etc/passwd", "/opt/data/workspace/of-the-host", "/opt/data/sessions/of-the-host", "/opt/data/profiles/coder/deep/er"),
		map[string]string{
			"/etc/passwd": "root:root 644", "/opt/data/workspace/of-the-host": "root:root 644", "/opt/data/sessions/of-the-host": "root:root 644",
			"/opt/data/profiles/coder/deep/er": "hermes:hermes 700",
		})
	eventually(t, settle, func() error {
		for _, text := range []string{"files and directories given to the agent's user", "/opt/data/"} {
			if r := c.exec("hinit", "events"); !strings.Contains(r.out, text) {
				return fmt.Errorf("the events do not have %q: %v", text, r)
			}
		}
		return nil
	})

	// Another user owns the data directory. hinit must repair only the agent's files in it.
	mustDocker(t, "stop", c.id)
	dir := ""
	if os.Geteuid() == 0 {
		dir = c.inspect("{{(index .Mounts 0).Source}}")
	}
	inVolume(t, dir, "mkdir of-the-host; touch of-the-host/file host_secret.json; chown -R 0:0 .", "--volumes-from", c.id, "-w", "/opt/data")
	c.start()
	c.awaitUp("gateway-default", "gateway-coder")
	c.awaitLog("[stage2] Fixing ownership of /opt/data (targeted) to hermes (10000)\n")
	eventually(t, settle, func() error {
		left := strings.Fields(c.exec("find", "/opt/data", "!", "-user", "hermes").out)
		slices.Sort(left)
		want := []string{
			"/opt/data/SOUL.md", "/opt/data/agent.conf", "/opt/data/host_secret.json", "/opt/data/of-the-host", "/opt/data/of-the-host/file",
		}
		if !slices.Equal(left, want) {
			return fmt.Errorf("root has %v, want %v", left, want)
		}
		return nil
	})
	c.awaitRepair()
	if repair := c.status().Init.Repair; repair.Changed == 0 || repair.Failed != 0 {
		t.Errorf("the status has %+v", repair)
	}
}

// awaitRepair waits until the repair of owners is complete.
func (c *container) awaitRepair() {
	c.t.Helper()
	eventually(c.t, settle, func() error {
		st, err := c.readStatus()
		if err == nil && (st.Init.Repair == nil || !st.Init.Repair.Done) {
			err = fmt.Errorf("the repair is not done: %+v", st.Init.Repair)
		}
		return err
	})
}
