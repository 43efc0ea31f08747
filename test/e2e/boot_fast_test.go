package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
)

// hermesImage builds the target "hermes" once, on a stand-in for the agent's image whose boot steps take 0.8 s and count their runs.
var hermesImage = sync.OnceValues(func() (string, error) { return hermesOn("fake-hermes") })

// newestImage is the same on a stand-in for the agent's newest image, whose boot scripts do more.
var newestImage = sync.OnceValues(func() (string, error) { return hermesOn("newest-hermes", "--build-arg", "NEWEST=1") })

func hermesOn(name string, args ...string) (string, error) {
	demo, err := demoImage()
	if err != nil {
		return "", err
	}
	agent := imageTag(name)
	if err := build("testdata/fake-hermes", agent, append(args, "--build-arg", "BASE="+demo)...); err != nil {
		return "", err
	}
	target, err := buildTarget("hermes", "--build-arg", "AGENT_IMAGE="+agent)
	if err != nil {
		return "", err
	}
	tag := imageTag("on-" + name)
	if r := docker("tag", target, tag); r.code != 0 { // the next build takes the name of the target
		return "", errors.New(r.String())
	}
	return tag, nil
}

// needHermes is need for that image.
func needHermes(t *testing.T) string {
	t.Helper()
	parallel(t)
	image, err := hermesImage()
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// said runs a container to its end and returns what it wrote on each stream.
func said(t *testing.T, image string, options []string, cmd ...string) (out, stderr string) {
	t.Helper()
	r := docker(words([]string{"run", "--rm"}, options, image, cmd...)...)
	if r.code != 0 {
		t.Fatal(r)
	}
	return r.out, r.err
}

// runs counts how often the two boot steps ran, those in the build of the image included.
const runs = `cat /opt/data/workspace/migrate.runs /opt/data/workspace/sync.runs | wc -l; hinit status -v | grep -c "^boot: .*py unchanged .*py unchanged"`

// TestFirstBootHasNothingToDo starts containers with empty volumes, as "docker run --rm IMAGE CMD" does each time. The results of
// the boot steps exist, the steps don't run, and the files belong to the agent's user of that container.
func TestFirstBootHasNothingToDo(t *testing.T) {
	image := needHermes(t)
	for _, tt := range []struct {
		name, owner string
		options     []string
	}{
		{"as it is", "10000:10000", nil},
		{"with PUID", "1234:1235", []string{"-e", "PUID=1234", "-e", "PGID=1235"}},
		{"as the agent's user", "10000:10000", []string{"--user", "10000:10000"}},
	} {
		out, _ := said(t, image, tt.options, "sh", "-c", runs+`; cd /opt/data; stat -c "%n %u:%g %a" config.yaml .env SOUL.md skills/greet/SKILL.md; grep -c '^API_SERVER_KEY=.' .env; cat config.yaml`)
		want := strings.ReplaceAll(`2
1
config.yaml OWNER 640
.env OWNER 600
SOUL.md OWNER 644
skills/greet/SKILL.md OWNER 644
1
model: none
_config_version: 2
`, "OWNER", tt.owner)
		if out != want {
			t.Errorf("%s:\n%s\nwant\n%s", tt.name, out, want)
		}
	}
	keys := make(map[string]bool)
	for range 2 {
		out, _ := said(t, image, nil, "grep", "^API_SERVER_KEY=", "/opt/data/.env")
		keys[out] = true
	}
	if len(keys) != 2 {
		t.Errorf("two containers have the keys %v", keys)
	}
	// Another environment may be another result, so the steps run.
	if out, _ := said(t, image, []string{"-e", "HERMES_SKIP_CONFIG_MIGRATION=1"}, "sh", "-c", runs+"; true"); out != "4\n0\n" {
		t.Errorf("with another environment: %q", out)
	}
}

// TestBootStepsRunOnce keeps a volume: the steps run when something of theirs has changed, and else not.
func TestBootStepsRunOnce(t *testing.T) {
	image := needHermes(t)
	volume := newVolume(t, "touch /volume/of-the-user")
	boot := func(options []string, want string) {
		t.Helper()
		options = append([]string{"-v", volume + ":/opt/data:nocopy"}, options...)
		if out, stderr := said(t, image, options, "sh", "-c", runs+"; true"); out != want {
			t.Errorf("%q, want %q\n%s", out, want, stderr)
		}
	}
	boot(nil, "2\n0\n")
	boot(nil, "2\n1\n")
	boot([]string{"--hostname", "another", "-e", "PUID=1234"}, "2\n1\n")
	said(t, image, []string{"-v", volume + ":/opt/data:nocopy"}, "sh", "-c", "echo changed >>/opt/data/skills/greet/SKILL.md")
	boot(nil, "3\n0\n")
	boot(nil, "3\n1\n")
}

// After the agent's user had changed, a command could not write to its files: they still belonged to the user before.
func TestAFirstCommandMayWriteWhereTheUserHasChanged(t *testing.T) {
	image := needHermes(t)
	const files = "cd /volume; mkdir skills home; for i in $(seq 4000); do : >skills/$i; done; : >home/notes; chown -R 4321 /volume"
	out, stderr := said(t, image, []string{"-v", newVolume(t, files) + ":/opt/data:nocopy", "-e", "PUID=1234"}, "sh", "-c", "echo changed >>/opt/data/home/notes; cat /opt/data/home/notes")
	if out != "changed\n" {
		t.Errorf("%q\n%s", out, stderr)
	}
}

// TestAShortCmdIsSparedTheRestOfItsSlots looks at what a container changed below /run, which is its own layer here: a slot's
// definition, the directories of s6 and the control socket. The rest of a slot is made a moment after the CMD began, and a CMD
// that is over by then never pays for it. A machine that is slow may take longer than that moment now and then.
func TestAShortCmdIsSparedTheRestOfItsSlots(t *testing.T) {
	parallel(t)
	const most = 32
	var last []string
	for range 20 {
		c := create(t, setup{}, "true")
		if r := c.attach(); r.code != 0 {
			t.Fatal(r)
		}
		last = nil
		for line := range strings.Lines(mustDocker(t, "diff", c.id)) {
			if path := strings.TrimSpace(line[1:]); strings.HasPrefix(path, "/run/") {
				last = append(last, path)
			}
		}
		for _, path := range []string{"gateway-default/run", "gateway-default/down", "dashboard/run", "main-hermes/run"} {
			if !slices.Contains(last, "/run/service/"+path) {
				t.Fatalf("%s is not there: %q", path, last)
			}
		}
		if len(last) <= most {
			return
		}
	}
	t.Errorf("%d names below /run were made or changed, want %d at most: %q", len(last), most, last)
}

// TestOneStdout takes what a command prints, and nothing else, in the first boot too.
func TestOneStdout(t *testing.T) {
	image := needHermes(t)
	bare := docker("run", "--rm", "--label", runLabel, "--entrypoint", "/opt/hermes/.venv/bin/hermes", image, "--version")
	for _, options := range [][]string{nil, {"-v", newVolume(t, "touch /volume/x") + ":/opt/data:nocopy"}} {
		out, stderr := said(t, image, options, "hermes", "--version")
		if out != bare.out || out == "" {
			t.Errorf("standard output is %q, want %q", out, bare.out)
		}
		if err := has(stderr, "[stage2] Setup complete", "reconcile: profile=default", "boot script of the user"); err != nil {
			t.Error(err)
		}
	}
}

// TestSleeperOfTheSupervisedGateway is what upstream's tests of the container look for with CMD "gateway run" (contract, section 12).
func TestSleeperOfTheSupervisedGateway(t *testing.T) {
	image := needHermes(t)
	const find = `ps -o ppid,args | while read ppid args; do
	[ "$args" = "sleep infinity" ] && tr '\0' ' ' </proc/$ppid/cmdline | grep -q main-wrapper.sh && echo one
done | grep -c one`
	c := start(t, setup{image: image}, "gateway", "run")
	c.awaitUp("gateway-default")
	eventually(t, settle, func() error {
		if n := c.must("sh", "-c", find+"; true"); n != "1" {
			return fmt.Errorf("%s processes", n)
		}
		return nil
	})
	if out := c.must("hinit", "status"); strings.Contains(out, "sleep") {
		t.Errorf("it is listed:\n%s", out)
	}
	if user := c.must("sh", "-c", "ps -o user,args | grep '[s]leep infinity'"); !strings.HasPrefix(user, "hermes") {
		t.Errorf("it is not the agent's: %s", user)
	}
	c.stop()
	d := start(t, setup{image: image}, "gateway", "run", "--no-supervise")
	eventually(t, settle, func() error {
		if len(d.matching("gateway run --no-supervise")) == 0 {
			return errors.New("no gateway")
		}
		return nil
	})
	if n := d.must("sh", "-c", find+"; true"); n != "0" {
		t.Errorf("%s processes beside a gateway in the foreground", n)
	}
}

// TestEnvironmentOfTheAgent: it equals an activated virtual environment, for gateways and the CMD.
func TestEnvironmentOfTheAgent(t *testing.T) {
	image := needHermes(t)
	out, _ := said(t, image, []string{"-w", "/tmp"}, "sh", "-c", "echo $VIRTUAL_ENV $VIRTUAL_ENV_PROMPT $PATH $PWD")
	if want := "/opt/hermes/.venv hermes /opt/hermes/.venv/bin:/command:"; !strings.HasPrefix(out, want) || !strings.HasSuffix(out, " /tmp\n") {
		t.Errorf("the CMD has %q", out)
	}
	c := start(t, setup{image: image}, "gateway", "run")
	c.awaitUp("gateway-default")
	s, _ := c.status().find("gateway-default")
	r := c.execAs([]string{"-u", "hermes"}, "sh", "-c", fmt.Sprintf(`tr '\0' '\n' </proc/%d/environ`, s.PID))
	if err := has("\n"+r.out, "\nVIRTUAL_ENV=/opt/hermes/.venv\n", "\nVIRTUAL_ENV_PROMPT=hermes\n", "\nPATH=/opt/hermes/.venv/bin:/command:", "\nPWD=/opt/data\n"); err != nil {
		t.Errorf("the gateway: %v", err)
	}
}

// TestStopIsNoFailure: who was told to end, and does, has not failed.
func TestStopIsNoFailure(t *testing.T) {
	parallel(t)
	c := start(t, setup{}, "sleep", "infinity")
	c.awaitStates(map[string]string{"gateway-default": "down"})
	c.stop()
	if code := c.inspect("{{.State.ExitCode}}"); code != "0" {
		t.Errorf("docker stop: exit code %s", code)
	}
	if r := runOnce(t, nil, "sh", "-c", "kill -TERM $$"); r.code != 143 {
		t.Errorf("ended by a signal of its own: %v", r)
	}
}

// TestNonRootAnswersAsS6: started as the agent's user the container answers the agent's commands as it does for root, and a strict
// boot has nothing to complain of.
func TestNonRootAnswersAsS6(t *testing.T) {
	image := needHermes(t)
	for _, tt := range []struct {
		name    string
		options []string
	}{
		{"as the agent's user", nil},
		{"with a read-only root", []string{"--read-only", "--tmpfs", "/run:uid=10000,mode=755"}},
	} {
		c := start(t, setup{image: image, options: append([]string{"--user", "10000:10000", "-e", "HINIT_BOOT_STRICT=1"}, tt.options...)}, "gateway", "run")
		c.awaitUp("gateway-default")
		if comm := c.must("cat", "/proc/1/comm"); comm != "s6-svscan" {
			t.Errorf("%s: process 1 is %s", tt.name, comm)
		}
		for _, step := range [][]string{{"test", "-d", "/run/s6/basedir"}, {"hermes", "profile", "create", "coder"}} {
			c.must(step...)
		}
		eventually(t, settle, func() error { // the example agent does not register its slot; hinit makes it when it sees the profile
			if r := c.exec("s6-svok", "/run/service/gateway-coder"); r.code != 0 {
				return fmt.Errorf("no slot yet: %v", r)
			}
			return nil
		})
		c.must("s6-svc", "-u", "/run/service/gateway-coder")
		c.await("gateway-coder", "up", func(s service) bool { return s.Ready })
		c.must("s6-svc", "-d", "/run/service/gateway-coder")
		c.await("gateway-coder", "down", func(s service) bool { return s.State == "down" })
		c.must("s6-svstat", "/run/service/gateway-coder")
		for _, w := range c.status().Init.Warnings {
			if strings.Contains(w, "s6") || strings.Contains(w, "control socket") {
				t.Errorf("%s: warning: %s", tt.name, w)
			}
		}
		c.stop()
	}
	// Where /run is another's, the warning says what to do.
	c := start(t, setup{image: image, options: []string{"--user", "10000:10000", "-e", "HINIT_BOOT_STRICT=1", "--tmpfs", "/run"}}, "gateway", "run")
	c.awaitUp("gateway-default")
	c.saysOnce("to have them, start with --tmpfs /run:uid=10000,mode=755")
}
