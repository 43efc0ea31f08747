package e2e

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"hinit/test/pages"
)

// reader types the commands of a page, in the page's order.
type reader struct {
	t     *testing.T
	page  string
	dir   string            // Working directory.
	names map[string]string // Container names in this test, by name on the page.
	pids  map[string]string // PIDs in this test, by PID on the page.
	words map[string]string // Replacements for words of the page.
}

// newReader reads a page below docs, and prepares container names of this run.
func newReader(t *testing.T, page string, containers ...string) *reader {
	t.Helper()
	r := &reader{t: t, page: page, dir: t.TempDir(), names: make(map[string]string), pids: make(map[string]string), words: make(map[string]string)}
	for _, name := range containers {
		ours := "hinit-e2e-" + runID + "-" + strings.TrimSuffix(filepath.Base(page), ".md") + "-" + name
		r.names[name] = ours
		t.Cleanup(func() {
			if t.Failed() {
				t.Log(docker("logs", "--tail", "40", ours))
			}
			docker("rm", "-fv", ours)
		})
	}
	return r
}

func (r *reader) blocks() []pages.Block {
	r.t.Helper()
	blocks, err := pages.Read(filepath.Join("../../docs", r.page))
	if err != nil {
		r.t.Fatal(err)
	}
	return blocks
}

// here adapts a command of the page to this test.
func (r *reader) here(command string) string {
	command = regexp.MustCompile(`\bhinit-demo\b`).ReplaceAllString(command, requireImage(r.t))
	command = strings.ReplaceAll(command, "docker run ", "docker run --label "+runLabel+" ")
	for name, ours := range r.names {
		named := regexp.MustCompile(`(docker (?:exec|restart|kill|start|stop|logs|rm)(?: -[-a-z]+(?: [0-9]+)?)*|--name) ` + name + `\b`)
		command = named.ReplaceAllString(command, "$1 "+ours)
	}
	for theirs, ours := range r.words {
		command = strings.ReplaceAll(command, theirs, ours)
	}
	for theirs, ours := range r.pids {
		command = regexp.MustCompile(`\bkill (-[0-9A-Z]+ )?`+theirs+`\b`).ReplaceAllString(command, "kill ${1}"+ours)
	}
	return command
}

func (r *reader) run(command string) string {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", r.here(command))
	cmd.Dir = r.dir
	output, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		r.t.Fatal(err)
	}
	text := string(output)
	for name, ours := range r.names {
		text = strings.ReplaceAll(text, ours, name)
	}
	return text
}

// queryCommand matches commands that may be repeated until the answer equals the page's.
var queryCommand = regexp.MustCompile(`^docker exec \S+ (hinit (status|logs|events|doctor|healthcheck|start misconf)|ls|cat|sh -c '(cd|zcat)) |^docker logs `)

// types runs all sessions of the page and compares their output. It calls do before each command.
func (r *reader) types(do func(command string)) {
	r.t.Helper()
	for _, s := range pages.Steps(r.blocks()) {
		if do != nil {
			do(s.Command)
		}
		var output string
		look := func() error {
			output = r.run(s.Command)
			// The loop repeats the command, as end-a-fork-bomb.md says.
			for tries := 0; strings.HasPrefix(output, "OCI runtime exec failed") && tries < 20; tries++ {
				output = r.run(s.Command)
			}
			if !s.Checked {
				return nil
			}
			return pages.Compare(s.Want, output)
		}
		err := look()
		if err != nil && queryCommand.MatchString(s.Command+" ") {
			err = poll(settle, look)
		}
		if err != nil {
			r.t.Errorf("docs/%s:%d: %s\n%v; it printed:\n%s", r.page, s.Line, s.Command, err, output)
		}
		pages.PairPIDs(s.Want, output, r.pids)
	}
}

// dashboard is the login setting of docker/compose.yaml, without which the dashboard refuses to
// listen on all addresses.
var dashboard = []string{
	"-e", "HERMES_DASHBOARD=1", "-e", "HERMES_DASHBOARD_BASIC_AUTH_USERNAME=admin", "-e", "HERMES_DASHBOARD_BASIC_AUTH_PASSWORD=secret",
}

func TestTheTutorialPrintsWhatItSays(t *testing.T) {
	parallel(t)
	r := newReader(t, "tutorial/first-container.md", "hinit")
	c := start(t, setup{options: append([]string{"--name", r.names["hinit"]}, dashboard...)}, "gateway", "run") // docker/compose.yaml does the same.
	c.awaitUp("gateway-default", "dashboard")
	r.types(nil)
}

func TestThePageAboutServicesPrintsWhatItSays(t *testing.T) {
	parallel(t)
	r := newReader(t, "how-to/add-a-service.md", "my")
	yaml, err := pages.FirstWith(r.blocks(), "yaml", "heartbeat")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(r.dir, "etc", "hinit.yaml")
	write := func(text string) {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write(yaml)
	r.run("docker run -d --name my -v $PWD/etc:/etc/hinit:ro hinit-demo gateway run")
	c := &container{t: t, id: r.names["my"]}
	c.awaitUp("gateway-default", "heartbeat")
	changed := strings.Replace(yaml, "sleep 5", "sleep 1", 1) + "  sidecar: {command: [sleep, \"1000\"], log: false}\n"
	reloads := 0
	r.types(func(command string) {
		if !strings.HasSuffix(command, "hinit reload") {
			return
		}
		switch reloads++; reloads {
		case 1:
			write(changed)
		case 2:
			write(strings.Replace(changed, "command", "comand", 1))
		case 3:
			write(changed + "logs: {console: json}\n")
		}
	})
	if reloads != 3 {
		t.Errorf("the page has %d reloads", reloads)
	}
}

func TestThePageAboutNonRootPrintsWhatItSays(t *testing.T) {
	parallel(t)
	newReader(t, "how-to/run-as-non-root-or-read-only.md").types(nil)
}

// TestFewCapabilitiesAreThoseOfThePage checks each row of the page: without that capability, hinit
// prints that warning.
func TestFewCapabilitiesAreThoseOfThePage(t *testing.T) {
	parallel(t)
	page := minimal(t)
	if r := runContainer(t, slices.Concat(page, []string{"--tmpfs", "/run"}), "true"); !strings.Contains(r.err, "hinit does not answer as s6") {
		t.Errorf("a tmpfs on /run does without CAP_CHOWN: %v", r)
	}
	for name, says := range map[string]string{
		"KILL": "no CAP_KILL", "SETUID": "root may not become uid", "SETGID": "root may not become uid",
	} {
		at := slices.Index(page, name)
		if at < 1 {
			t.Fatalf("the page does not have %s: %q", name, page)
		}
		r := runContainer(t, slices.Concat(page[:at-1], page[at+1:]), "echo", "the CMD was run")
		if strings.Count(r.err, says) != 1 {
			t.Errorf("without %s %q is not said once: %v", name, says, r)
		}
		if name != "KILL" && (r.code != 126 || strings.Contains(r.out, "the CMD")) {
			t.Errorf("without %s want exit code 126 and no CMD: %v", name, r)
		}
	}
}

func TestThePageAboutGatewaysThatAreDownPrintsWhatItSays(t *testing.T) {
	parallel(t)
	r := newReader(t, "how-to/find-out-why-a-gateway-is-down.md", "hinit")
	profile := func(name, conf string) map[string]string {
		dir := "/opt/data/profiles/" + name
		return map[string]string{dir + "/SOUL.md": "", dir + "/gateway_state.json": `{"desired_state":"running"}`, dir + "/agent.conf": conf}
	}
	files := profile("misconf", "exit_now=78\n")
	maps.Copy(files, profile("looper", "exit_now=3\n"))
	maps.Copy(files, profile("coder", ""))
	c := start(t, setup{options: []string{"--name", r.names["hinit"]}, files: files}, "gateway", "run")
	c.awaitUp("gateway-default", "gateway-coder")
	r.types(nil)
}

func TestThePageAboutReplacingS6PrintsWhatItSays(t *testing.T) {
	parallel(t)
	r := newReader(t, "how-to/replace-s6-overlay.md")
	// The two commands are one session, because the second prints the first one's exit code.
	steps := pages.Steps(r.blocks())
	if len(steps) != 2 || steps[1].Command != "echo $?" {
		t.Fatalf("the page has %+v", steps)
	}
	output := r.run(steps[0].Command + "; echo $?")
	if err := pages.Compare(steps[0].Want+steps[1].Want, output); err != nil {
		t.Errorf("%v; it printed:\n%s", err, output)
	}
}

func TestThePageAboutOtherAgentsWorks(t *testing.T) {
	parallel(t)
	binaries, err := hinitImage()
	if err != nil {
		t.Fatal(err)
	}
	r := newReader(t, "how-to/host-another-agent.md", "my")
	blocks := r.blocks()
	for file, of := range map[string][2]string{"my-agent": {"sh", "my-agent PROFILE"}, "hinit.yaml": {"yaml", "agent:"}, "Dockerfile": {"dockerfile", "ARG BASE"}} {
		text, err := pages.FirstWith(blocks, of[0], of[1])
		if err != nil {
			t.Fatal(err)
		}
		text = strings.ReplaceAll(text, "--from=hinit ", "--from="+binaries+" ")
		if err := os.WriteFile(filepath.Join(r.dir, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	image := imageTag("my-agent")
	if err := build(r.dir, image, "--build-arg", "BASE="+requireImage(t)); err != nil {
		t.Fatal(err)
	}
	mustDocker(t, "run", "-d", "--label", runLabel, "--name", r.names["my"], image)
	(&container{t: t, id: r.names["my"]}).awaitUp("gateway-default")
	r.types(nil)
}

func TestThePageAboutCurlPrintsWhatItSays(t *testing.T) {
	parallel(t)
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("there is no curl")
	}
	r := newReader(t, "how-to/control-api-with-curl.md", "my")
	if err := os.Mkdir(filepath.Join(r.dir, "run"), 0o755); err != nil {
		t.Fatal(err)
	}
	r.run("docker run -d --name my " + strings.Join(dashboard, " ") + " -v $PWD/run:/run/hinit hinit-demo gateway run")
	c := &container{t: t, id: r.names["my"]}
	c.awaitUp("gateway-default", "dashboard")
	c.awaitHealthy() // The first command asks only once, so the container must be healthy.
	for _, s := range pages.Steps(r.blocks()) {
		command := s.Command
		if strings.Contains(command, "follow=1") { // A command that follows does not end by itself.
			command = "timeout 3 " + command
		}
		output := r.run(command)
		if err := pages.Compare(s.Want, output); s.Checked && err != nil {
			t.Errorf("docs/%s:%d: %s\n%v; it printed:\n%s", r.page, s.Line, s.Command, err, output)
		}
	}
}

// TestNoPageHasAnImageThatIsNone checks the image names on the pages, which readers type unchanged.
func TestNoPageHasAnImageThatIsNone(t *testing.T) {
	found, err := filepath.Glob("../../docs/*/*.md")
	if err != nil || len(found) < 20 {
		t.Fatal(err, len(found))
	}
	none := regexp.MustCompile(`docker run[^` + "`" + `\n]* IMAGE\b`)
	for _, name := range found {
		// reference/sandbox.md lists docker arguments that are no images.
		if strings.Contains(name, "/adr/") || strings.Contains(name, "benchmarks") || strings.HasSuffix(name, "reference/sandbox.md") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if m := none.Find(text); m != nil {
			t.Errorf("%s has: %s", name, m)
		}
	}
}

// TestThePageAboutLogsPrintsWhatItSays checks the commands on the page, with the YAML blocks before
// them in hinit.yaml.
func TestThePageAboutLogsPrintsWhatItSays(t *testing.T) {
	parallel(t)
	r := newReader(t, "how-to/keep-logs-small-and-clean.md", "my")
	var yaml []string
	for _, b := range r.blocks() {
		if b.Lang == "yaml" {
			yaml = append(yaml, b.Text)
		}
	}
	if len(yaml) != 3 {
		t.Fatalf("the page has %d blocks of YAML", len(yaml))
	}
	etc := filepath.Join(r.dir, "etc")
	write := func(text string) {
		if err := errors.Join(os.MkdirAll(etc, 0o755), os.WriteFile(filepath.Join(etc, "hinit.yaml"), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write("{}")
	chatty := "/opt/data/profiles/chatty/"
	c := start(t, setup{
		options: []string{"--name", r.names["my"], "-v", etc + ":/etc/hinit:ro"},
		files:   map[string]string{chatty + "SOUL.md": "", chatty + "agent.conf": "flood=1000\n", chatty + "gateway_state.json": `{"desired_state":"running"}`},
	}, "gateway", "run")
	c.awaitUp("gateway-default", "gateway-chatty")
	both := yaml[0] + strings.TrimPrefix(yaml[1], "logs:\n") // A file may have only one key "logs".
	reloads := 0
	r.types(func(command string) {
		switch {
		case strings.HasSuffix(command, "hinit config check"):
			write(yaml[0])
		case strings.HasSuffix(command, "hinit reload"):
			if reloads++; reloads == 2 {
				write(both)
			}
		case strings.HasPrefix(command, "docker restart"):
			write(yaml[2])
		}
	})
	if reloads != 2 {
		t.Errorf("the page has %d reloads", reloads)
	}
}

// TestThePageAboutForkBombsPrintsWhatItSays checks the commands on the page. Its service uses up
// all PIDs, but no processor time.
func TestThePageAboutForkBombsPrintsWhatItSays(t *testing.T) {
	parallel(t)
	r := newReader(t, "how-to/end-a-fork-bomb.md", "my")
	const bomb = "services:\n  bomb:\n    enabled: false\n    stop: {grace: 3m}\n    command: [sh, -c, '(while :; do sleep 100000 & done) 2>/dev/null & exec sleep 100000']\n"
	c := start(t, setup{
		options: []string{"--name", r.names["my"], "--pids-limit", "100", "--memory", "256m"}, files: map[string]string{"/etc/hinit/hinit.yaml": bomb},
	}, "gateway", "run")
	c.awaitUp("gateway-default")
	arm := func() {
		c.mustExec("hinit", "start", "--no-wait", "bomb")
		eventually(t, settle, func() error {
			if r := c.exec("hinit", "status"); !strings.Contains(r.out, "process numbers of the container are used") {
				return errors.New(r.String())
			}
			return nil
		})
	}
	arm()
	typed := false
	r.types(func(command string) {
		if strings.Contains(command, "/run/hinit/orders") {
			arm()
			typed = true
		}
	})
	if !typed {
		t.Error("the page does not have the order by the FIFO")
	}
}

func TestThePageAboutTwoContainersPrintsWhatItSays(t *testing.T) {
	parallel(t)
	volume := mustDocker(t, "volume", "create", "--label", runLabel, "hinit-e2e-"+runID+"-page-data")
	t.Cleanup(func() { docker("volume", "rm", volume) }) // This cleanup runs after the removal of the containers.
	r := newReader(t, "how-to/two-containers-one-volume.md", "first", "second")
	r.words["-v data:"] = "-v " + volume + ":"
	r.types(nil)
}

func TestREADMEPrintsWhatItSays(t *testing.T) {
	parallel(t)
	r := newReader(t, "../README.md", "hinit")
	c := start(t, setup{options: []string{"--name", r.names["hinit"]}}, "gateway", "run")
	c.awaitUp("gateway-default")
	r.types(nil)
}
