package e2e

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"hinit/internal/s6/applet"
)

// TestTargetHinit checks that the image has only the binaries, for COPY --from.
func TestTargetHinit(t *testing.T) {
	parallel(t)
	image, err := hinitImage()
	if err != nil {
		t.Fatal(err)
	}
	if err := build("testdata/copy-from", imageTag("copy-from"), "--build-arg", "HINIT="+image, "--build-arg", "BASE="+requireImage(t)); err != nil {
		t.Fatal(err)
	}
	r := docker("run", "--rm", "--label", runLabel, "--entrypoint", "/bin/find", imageTag("copy-from"), "/from", "-type", "f")
	got := strings.Fields(r.out)
	slices.Sort(got)
	if want := []string{"/from/hinit-actions", "/from/hinit-import", "/from/hinit-isolate", "/from/hinit-kanban", "/from/hinit-profile", "/from/hinit-sandbox", "/from/hinit-sandbox-helper", "/from/hinit-shim", "/from/hinit-tools", "/from/hinit-top", "/from/hinit-web", "/from/init"}; r.code != 0 || !slices.Equal(got, want) {
		t.Errorf("want %q: %v", want, r)
	}
	if r := docker("run", "--rm", "--label", runLabel, "--entrypoint", "/init", image, "init", "--help"); r.code == 0 {
		t.Errorf("an image without a user has run a command: %v", r)
	}
}

// TestTargetHermes checks an image of the agent in which hinit replaces s6-overlay.
func TestTargetHermes(t *testing.T) {
	image := requireHermes(t)
	config := mustDocker(t, "inspect", "--format", "{{json .Config.Entrypoint}} {{json .Config.Cmd}} {{.Config.User}} {{.Config.WorkingDir}} {{json .Config.Volumes}}", image)
	if want := `["/init","/opt/hermes/docker/main-wrapper.sh"] `; !strings.HasPrefix(config, want) ||
		!strings.HasSuffix(config, ` root /opt/hermes {"/opt/data":{}}`) || strings.Contains(config, "something") {
		t.Errorf("entrypoint, command, user, directory, volumes: %s", config)
	}

	c := start(t, setup{image: image}, "gateway", "run")
	c.awaitUp("gateway-default")
	c.checkOneSleeper()
	gateway, _ := c.status().find("gateway-default")
	if err := checkContains(c.environ(gateway.PID), "\nVIRTUAL_ENV=/opt/hermes/.venv\n", "\nVIRTUAL_ENV_PROMPT=hermes\n", "\nPATH=/opt/hermes/.venv/bin:/command:", "\nPWD=/opt/data\n"); err != nil {
		t.Errorf("the gateway: %v", err)
	}
	if path := c.mustExec("sh", "-c", "echo $PATH"); path != rootPath {
		t.Errorf("PATH of root's commands: %s", path)
	}
	gone := []string{
		"/package", "/command/s6-svscan", "/etc/s6-overlay", "/etc/services.d", "/run/s6/basedir/bin", "/etc/cont-init.d/01-hermes-setup",
		"/etc/cont-init.d/015-supervise-perms", "/etc/cont-init.d/02-reconcile-profiles", "/tmp/remove-s6", "/tmp/first-boot", "/usr/bin/s6-svscan", "/bin/s6-svscan",
	}
	if found := c.mustExec(append([]string{"sh", "-c", `for path; do if [ -e $path ] || [ -L $path ]; then echo $path; fi; done`, "sh"}, gone...)...); found != "" {
		t.Errorf("still there: %s", found)
	}
	var links []string
	for _, tool := range applet.Names() {
		links = append(links, "/command/"+tool, "/usr/bin/"+tool)
	}
	leads := c.mustExec(append([]string{"sh", "-c", `for path; do echo "$path $(readlink -f $path)"; done`, "sh"}, links...)...)
	for _, path := range links {
		if !strings.Contains(leads+"\n", path+" /hinit-tools\n") {
			t.Errorf("%s does not lead to /hinit-tools:\n%s", path, leads)
		}
	}
	for _, path := range []string{"/etc/cont-init.d/50-of-the-user", "/usr/bin/kept", "/opt/hermes/docker/main-wrapper.sh"} {
		c.mustExec("test", "-x", path)
	}
	for _, path := range []string{"/usr/bin/tini", "/usr/local/bin/hinit"} {
		c.mustExec("test", "-L", path)
		if target := c.mustExec("readlink", "-f", path); target != "/init" {
			t.Errorf("%s leads to %s", path, target)
		}
	}
	for name, dir := range map[string]string{"hermes": "/opt/hermes/bin/", "hinit": "/usr/local/bin/"} {
		if path := c.mustExec("which", name); path != dir+name {
			t.Errorf("%s is %s", name, path)
		}
	}
	c.mustExec("hermes", "config", "set", "k", "v")
	if owner := c.mustExec("stat", "-c", "%U", "/opt/data/config.yaml"); owner != "hermes" {
		t.Errorf("config.yaml belongs to %s", owner)
	}
	c.mustExec("hermes", "profile", "create", "coder")
	c.mustExec("hinit", "start", "coder")
	if out := c.mustExec("sh", "-c", "echo $AGENT_IMAGE_SAYS"); out != "kept" {
		t.Errorf("the environment of the image is lost: %q", out)
	}
	mustDocker(t, "restart", c.id)
	c.awaitStates(map[string]string{"gateway-default": "up", "gateway-coder": "up"})
	if out, stderr := c.logs(); strings.Contains(out+stderr, "s6 is still here") {
		t.Error("something of s6 was run")
	}
}

// checkImagePaths checks the image's checkImagePaths on which external tools rely (contract, section 1).
func checkImagePaths(t *testing.T, c *container) {
	want := map[string]string{
		"/tmp": "root:root 1777", "/opt/data": "hermes:hermes 755", "/opt/hermes": "root:root 755",
		"/opt/hermes/bin/hermes": "root:root 755", "/opt/hermes/.venv/bin/hermes": "root:root 755", "/init": "root:root 755",
		"/opt/hermes/docker/main-wrapper.sh": "root:root 755",
		"/opt/data/logs":                     "hermes:hermes 755", "/opt/data/logs/gateways": "hermes:hermes 755",
	}
	sameOwners(t, c.owners(slices.Sorted(maps.Keys(want))...), want)
	for _, path := range []string{"/usr/bin/tini", "/usr/local/bin/hinit"} {
		c.mustExec("test", "-L", path)
		if target := c.mustExec("readlink", "-f", path); target != "/init" {
			t.Errorf("%s leads to %s", path, target)
		}
	}
	if entry := mustDocker(t, "inspect", "--format", "{{json .Config.Entrypoint}}", requireImage(t)); entry != `["/init","/opt/hermes/docker/main-wrapper.sh"]` {
		t.Errorf("entrypoint %s", entry)
	}
	if stamp := c.mustExec("cat", "/opt/hermes/.install_method"); stamp != "docker" {
		t.Errorf("install stamp %q", stamp)
	}
}
