package e2e

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
)

// hermesImage builds the target "hermes" once, on a stand-in for the agent's image whose boot steps count their runs.
var hermesImage = sync.OnceValues(func() (string, error) { return hermesOn("fake-hermes") })

// newestImage builds the same target on a stand-in for the agent's newest image, whose boot scripts do more.
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

// needHermes is need for the image that hermesImage builds. It builds the image while other tests run.
func needHermes(t *testing.T) string {
	t.Helper()
	need(t)
	go hermesImage()
	parallel(t)
	image, err := hermesImage()
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// said runs a container to its end and returns its output on each stream.
func said(t *testing.T, image string, options []string, cmd ...string) (out, stderr string) {
	t.Helper()
	r := docker(words([]string{"run", "--rm"}, options, image, cmd...)...)
	if r.code != 0 {
		t.Fatal(r)
	}
	return r.out, r.err
}

// runs counts how often the two boot steps ran, including those in the build of the image.
const runs = `cat /opt/data/workspace/migrate.runs /opt/data/workspace/sync.runs | wc -l; hinit status -v | grep -c "^boot: .*py unchanged .*py unchanged"`

// TestFirstBootHasNothingToDo checks that the boot steps don't run on an empty volume, because the image has their
// results. "docker run --rm IMAGE CMD" has such a volume each time. The files must belong to the agent's user of that
// container.
func TestFirstBootHasNothingToDo(t *testing.T) {
	image := needHermes(t)
	keys := make(map[string]bool)
	for _, tt := range []struct {
		name, owner string
		options     []string
	}{
		{"as it is", "10000:10000", nil},
		{"with PUID", "1234:1235", []string{"-e", "PUID=1234", "-e", "PGID=1235"}},
		{"as the agent's user, with a strict boot", "10000:10000", []string{"--user", "10000:10000", "-e", "HINIT_BOOT_STRICT=1"}},
	} {
		out, _ := said(t, image, tt.options, "sh", "-c", runs+`; cd /opt/data; stat -c "%n %u:%g %a" config.yaml .env SOUL.md skills/greet/SKILL.md; cat config.yaml; grep '^API_SERVER_KEY=.' .env`)
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
	if out, _ := said(t, image, []string{"-e", "HERMES_SKIP_CONFIG_MIGRATION=1"}, "sh", "-c", runs+"; true"); out != "4\n0\n" {
		t.Errorf("with another environment: %q", out)
	}
}

// TestBootStepsRunOnce checks that the steps run on a kept volume only when something has changed that they depend on.
func TestBootStepsRunOnce(t *testing.T) {
	image := needHermes(t)
	volume := newVolume(t, "touch of-the-user")
	boot := func(options []string, then, want string) {
		t.Helper()
		options = append([]string{"-v", volume + ":/opt/data:nocopy"}, options...)
		if out, stderr := said(t, image, options, "sh", "-c", runs+"; "+then); out != want {
			t.Errorf("%q, want %q\n%s", out, want, stderr)
		}
	}
	boot(nil, "true", "2\n0\n")
	boot([]string{"--hostname", "another", "-e", "PUID=1234"}, "echo changed >>/opt/data/skills/greet/SKILL.md", "2\n1\n")
	boot(nil, "true", "3\n0\n")
}

// After a change of the agent's user, the first command must be able to write to its files. They must not belong to the
// old user any more.
func TestAFirstCommandMayWriteWhereTheUserHasChanged(t *testing.T) {
	image := needHermes(t)
	const files = "mkdir skills home; for i in $(seq 4000); do : >skills/$i; done; : >home/notes; chown -R 4321 ."
	out, stderr := said(t, image, []string{"-v", newVolume(t, files) + ":/opt/data:nocopy", "-e", "PUID=1234"}, "sh", "-c", "echo changed >>/opt/data/home/notes; cat /opt/data/home/notes")
	if out != "changed\n" {
		t.Errorf("%q\n%s", out, stderr)
	}
}

// TestAShortCmdIsSparedTheRestOfItsSlots checks that a short CMD does not wait for slots. Only a slot's definition, the
// directories of s6 and the control socket may be made below /run, which is the container's own layer here. The rest of
// a slot is made a moment after the CMD began. A slow machine may need longer than that moment now and then.
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

// TestOneStdout checks that hinit adds nothing to the standard output of the CMD, not even in the first boot.
func TestOneStdout(t *testing.T) {
	image := needHermes(t)
	bare := docker("run", "--rm", "--label", runLabel, "--entrypoint", "/opt/hermes/.venv/bin/hermes", image, "--version")
	out, stderr := said(t, image, nil, "hermes", "--version")
	if out != bare.out || out == "" {
		t.Errorf("standard output is %q, want %q", out, bare.out)
	}
	if err := has(stderr, "[stage2] Setup complete", "reconcile: profile=default", "boot script of the user"); err != nil {
		t.Error(err)
	}
}

// oneSleeper fails the test unless exactly one process exists that upstream's tests search for with CMD "gateway run"
// (contract, section 12).
func (c *container) oneSleeper() {
	c.t.Helper()
	const find = `ps -o ppid,args | while read ppid args; do
	[ "$args" = "sleep infinity" ] && tr '\0' ' ' </proc/$ppid/cmdline | grep -q main-wrapper.sh && echo one
done | grep -c one`
	eventually(c.t, settle, func() error {
		if n := c.must("sh", "-c", find+"; true"); n != "1" {
			return fmt.Errorf("%s processes", n)
		}
		return nil
	})
	if out := c.must("hinit", "status"); strings.Contains(out, "sleep") {
		c.t.Errorf("it is listed:\n%s", out)
	}
	if user := c.must("sh", "-c", "ps -o user,args | grep '[s]leep infinity'"); !strings.HasPrefix(user, "hermes") {
		c.t.Errorf("it is not the agent's: %s", user)
	}
}

// TestEnvironmentOfTheAgent checks that the environment of the CMD equals an activated virtual environment. TestTargetHermes
// checks a gateway.
func TestEnvironmentOfTheAgent(t *testing.T) {
	image := needHermes(t)
	out, _ := said(t, image, []string{"-w", "/tmp"}, "sh", "-c", "echo $VIRTUAL_ENV $VIRTUAL_ENV_PROMPT $PATH $PWD")
	if want := "/opt/hermes/.venv hermes /opt/hermes/.venv/bin:/command:"; !strings.HasPrefix(out, want) || !strings.HasSuffix(out, " /tmp\n") {
		t.Errorf("the CMD has %q", out)
	}
}
