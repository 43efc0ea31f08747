package e2e

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
)

// hermesImage builds the target "hermes" once, on a stand-in for the agent's image that counts its
// boot steps.
var hermesImage = sync.OnceValues(func() (string, error) { return hermesOn("fake-hermes") })

// newestImage builds the target "hermes" on a stand-in for the agent's newest image.
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
	return buildTarget("hermes", imageTag("on-"+name), "--build-arg", "AGENT_IMAGE="+agent)
}

// requireHermes returns the image of hermesImage, or skips the test without an engine.
func requireHermes(t *testing.T) string {
	t.Helper()
	requireImage(t)
	go hermesImage()
	parallel(t)
	image, err := hermesImage()
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// runAndCapture runs a container to its end and returns both output streams.
func runAndCapture(t *testing.T, image string, options []string, cmd ...string) (out, stderr string) {
	t.Helper()
	r := docker(dockerRunArgs([]string{"run", "--rm"}, options, image, cmd...)...)
	if r.code != 0 {
		t.Fatal(r)
	}
	return r.out, r.err
}

// runs counts the runs of the two boot steps, including those in the build of the image.
const runs = `cat /opt/data/workspace/migrate.runs /opt/data/workspace/sync.runs | wc -l; hinit status -v | grep -c "^boot: .*py unchanged .*py unchanged"`

// TestFirstBootHasNothingToDo checks that the boot steps don't run on an empty volume, because the
// image contains their results.
func TestFirstBootHasNothingToDo(t *testing.T) {
	image := requireHermes(t)
	keys := make(map[string]bool)
	for _, tt := range []struct {
		name, owner string
		options     []string
	}{
		{"as it is", "10000:10000", nil},
		{"with PUID", "1234:1235", []string{"-e", "PUID=1234", "-e", "PGID=1235"}},
		{"as the agent's user, with a strict boot", "10000:10000", []string{"--user", "10000:10000", "-e", "HINIT_BOOT_STRICT=1"}},
	} {
		out, _ := runAndCapture(t, image, tt.options, "sh", "-c", runs+`; cd /opt/data; stat -c "%n %u:%g %a" config.yaml .env SOUL.md skills/greet/SKILL.md; cat config.yaml; grep '^API_SERVER_KEY=.' .env`)
		out, key, _ := strings.Cut(out, "API_SERVER_KEY=")
		keys[key] = true
		want := strings.ReplaceAll(`2
1
config.yaml OWNER 640
.env OWNER 600
SOUL.md OWNER 644
skills/greet/SKILL.md OWNER 644
model: none
_config_version: 2
`, "OWNER", tt.owner)
		if out != want {
			t.Errorf("%s:\n%s\nwant\n%s", tt.name, out, want)
		}
	}
	if len(keys) != 3 || keys[""] {
		t.Errorf("three containers have the keys %v", keys)
	}
	// With another environment, the results may differ, so the steps must run.
	if out, _ := runAndCapture(t, image, []string{"-e", "HERMES_SKIP_CONFIG_MIGRATION=1"}, "sh", "-c", runs+"; true"); out != "4\n0\n" {
		t.Errorf("with another environment: %q", out)
	}
}

// TestBootStepsRunOnce checks that the steps run on a kept volume only after a change on which they
// depend.
func TestBootStepsRunOnce(t *testing.T) {
	image := requireHermes(t)
	volume := newVolume(t, "touch of-the-user")
	boot := func(options []string, then, want string) {
		t.Helper()
		options = append([]string{"-v", volume + ":/opt/data:nocopy"}, options...)
		if out, stderr := runAndCapture(t, image, options, "sh", "-c", runs+"; "+then); out != want {
			t.Errorf("%q, want %q\n%s", out, want, stderr)
		}
	}
	boot(nil, "true", "2\n0\n")
	boot([]string{"--hostname", "another", "-e", "PUID=1234"}, "echo changed >>/opt/data/skills/greet/SKILL.md", "2\n1\n")
	boot(nil, "true", "3\n0\n")
}

// TestAFirstCommandMayWriteWhereTheUserHasChanged checks that the first command can write to the
// agent's files after a change of the agent's user ID.
func TestAFirstCommandMayWriteWhereTheUserHasChanged(t *testing.T) {
	image := requireHermes(t)
	const files = "mkdir skills home; for i in $(seq 4000); do : >skills/$i; done; : >home/notes; chown -R 4321 ."
	out, stderr := runAndCapture(t, image, []string{"-v", newVolume(t, files) + ":/opt/data:nocopy", "-e", "PUID=1234"}, "sh", "-c", "echo changed >>/opt/data/home/notes; cat /opt/data/home/notes")
	if out != "changed\n" {
		t.Errorf("%q\n%s", out, stderr)
	}
}

// TestAShortCmdIsSparedTheRestOfItsSlots checks that a short CMD does not wait for the creation of
// s6 slots.
func TestAShortCmdIsSparedTheRestOfItsSlots(t *testing.T) {
	parallel(t)
	const most = 32
	var last []string
	for try := range 20 {
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
			t.Logf("container %d had the %d names", try+1, len(last))
			return
		}
	}
	t.Errorf("%d names below /run were made or changed, want %d at most: %q", len(last), most, last)
}

// TestOneStdout checks that hinit adds nothing to the CMD's standard output.
func TestOneStdout(t *testing.T) {
	image := requireHermes(t)
	bare := docker("run", "--rm", "--label", runLabel, "--entrypoint", "/opt/hermes/.venv/bin/hermes", image, "--version")
	out, stderr := runAndCapture(t, image, nil, "hermes", "--version")
	if out != bare.out || out == "" {
		t.Errorf("standard output is %q, want %q", out, bare.out)
	}
	if err := checkContains(stderr, "[stage2] Setup complete", "reconcile: profile=default", "boot script of the user"); err != nil {
		t.Error(err)
	}
}

// checkOneSleeper fails the test unless exactly one sleep process runs, for which the agent's tests
// search (contract, section 12).
func (c *container) checkOneSleeper() {
	c.t.Helper()
	const find = `ps -o ppid,args | while read ppid args; do
	[ "$args" = "sleep infinity" ] && tr '\0' ' ' </proc/$ppid/cmdline | grep -q main-wrapper.sh && echo one
done | grep -c one`
	eventually(c.t, settle, func() error {
		if n := c.mustExec("sh", "-c", find+"; true"); n != "1" {
			return fmt.Errorf("%s processes", n)
		}
		return nil
	})
	if out := c.mustExec("hinit", "status"); strings.Contains(out, "sleep") {
		c.t.Errorf("it is listed:\n%s", out)
	}
	if user := c.mustExec("sh", "-c", "ps -o user,args | grep '[s]leep infinity'"); !strings.HasPrefix(user, "hermes") {
		c.t.Errorf("it is not the agent's: %s", user)
	}
}

// TestEnvironmentOfTheAgent checks that the CMD's environment equals an activated virtual
// environment.
func TestEnvironmentOfTheAgent(t *testing.T) {
	image := requireHermes(t)
	out, _ := runAndCapture(t, image, []string{"-w", "/tmp"}, "sh", "-c", "echo $VIRTUAL_ENV $VIRTUAL_ENV_PROMPT $PATH $PWD")
	if want := "/opt/hermes/.venv hermes /opt/hermes/.venv/bin:/command:"; !strings.HasPrefix(out, want) || !strings.HasSuffix(out, " /tmp\n") {
		t.Errorf("the CMD has %q", out)
	}
}
