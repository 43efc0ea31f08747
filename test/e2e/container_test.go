package e2e

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"hinit/client/dial"
)

// settle limits the wait for something that takes well under a second on an idle machine. It is long because the tests run on
// busy ones.
const settle = 3 * time.Minute

// container belongs to one test, and is removed with its volumes at the test's end.
type container struct {
	t      *testing.T
	id     string
	misses int // Number of consecutive requests to the socket without an answer.
}

// setup describes a container, except for its command.
type setup struct {
	options []string          // Options of docker create.
	files   map[string]string // Files to create before the start; hermes owns those below /opt/data.
	image   string            // Image; "" for the demo.
}

// dockerRunArgs returns the arguments of docker run or create. The container shares the host's network
// unless it needs its own, because a network doubles the engine's processor time.
func dockerRunArgs(verb, options []string, image string, cmd ...string) []string {
	args := append(verb, "--label", runLabel)
	networked := func(w string) bool {
		return strings.HasPrefix(w, "--network") || strings.HasPrefix(w, "--hostname") || w == "-p" || w == "--name" || strings.Contains(w, "DASHBOARD") || w == "dashboard"
	}
	if !slices.ContainsFunc(slices.Concat(options, cmd), networked) {
		args = append(args, "--network", "host", "--hostname", strings.ToLower(rand.Text()[:12]))
	}
	return slices.Concat(args, options, []string{image}, cmd)
}

// runContainer runs a container with docker run --rm.
func runContainer(t *testing.T, options []string, cmd ...string) result {
	t.Helper()
	return docker(dockerRunArgs([]string{"run", "--rm"}, options, requireImage(t), cmd...)...)
}

// create creates a container without starting it.
func create(t *testing.T, s setup, cmd ...string) *container {
	t.Helper()
	if s.image == "" {
		s.image = requireImage(t)
	}
	c := &container{t: t, id: mustDocker(t, dockerRunArgs([]string{"create"}, s.options, s.image, cmd...)...)}
	t.Cleanup(func() {
		if t.Failed() {
			out, stderr := c.logs()
			t.Logf("container %.12s, stdout:\n%s\nstderr:\n%s", c.id, tail(out), tail(stderr))
		}
		eventually(t, settle, func() error { // A slow engine may report that it could not kill the container.
			if r := docker("rm", "-fv", c.id); r.code != 0 && !strings.Contains(r.err, "No such container") {
				return errors.New(r.String())
			}
			return nil
		})
	})
	if len(s.files) > 0 {
		c.writeFiles(s.files)
	}
	return c
}

func start(t *testing.T, s setup, cmd ...string) *container {
	t.Helper()
	c := create(t, s, cmd...)
	c.start()
	return c
}

func (c *container) start() {
	c.t.Helper()
	mustDocker(c.t, "start", c.id)
}

func (c *container) writeFiles(files map[string]string) {
	c.t.Helper()
	var entries []entry
	made := map[string]bool{"/": true, "/opt": true, "/etc": true}
	owner := func(name string) int {
		if strings.HasPrefix(name, "/opt/data") {
			return 10000
		}
		return 0
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		var parents []string
		for dir := path.Dir(name); !made[dir]; dir = path.Dir(dir) {
			made[dir] = true
			parents = append(parents, dir)
		}
		for _, dir := range slices.Backward(parents) {
			entries = append(entries, entry{name: dir + "/", owner: owner(dir)})
		}
		entries = append(entries, entry{name: name, content: files[name], owner: owner(name)})
	}
	c.writeEntries(entries...)
}

// entry is a file, link or directory for lay.
type entry struct {
	name    string // Name; a final slash makes it a directory.
	content string
	link    string // Target of a symbolic link.
	mode    int64  // Mode; default 0644, or 0755 for a directory.
	owner   int    // uid and gid of the file.
}

// writeEntries creates the described files in the container, without parent directories.
func (c *container) writeEntries(entries ...entry) {
	c.t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, e := range entries {
		h := tar.Header{
			Name: strings.TrimPrefix(e.name, "/"), Typeflag: tar.TypeReg, Mode: cmp.Or(e.mode, 0o644), Uid: e.owner, Gid: e.owner,
			Size: int64(len(e.content)), ModTime: time.Now(),
		}
		switch {
		case e.link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
		case strings.HasSuffix(e.name, "/"):
			h.Typeflag, h.Mode = tar.TypeDir, cmp.Or(e.mode, 0o755)
		}
		if err := w.WriteHeader(&h); err != nil {
			c.t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.content)); err != nil {
			c.t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "docker", "cp", "-", c.id+":/")
	cmd.Stdin = &archive
	if r := command(cmd); r.code != 0 {
		c.t.Fatal(r)
	}
}

// stop runs docker stop with a long timeout, and returns its duration. A short timeout would hide
// an init that does not stop by itself.
func (c *container) stop() time.Duration {
	c.t.Helper()
	begin := time.Now()
	mustDocker(c.t, "stop", "--time", "60", c.id)
	took := time.Since(begin)
	if code := c.inspect("{{.State.ExitCode}}"); code == "137" {
		c.t.Errorf("docker had to kill the container, after %v", took)
	}
	return took
}

// stopTime is the maximum duration of docker stop. hinit itself has 8 s.
const stopTime = 30 * time.Second

// attach starts the container and waits for its end.
func (c *container) attach() result { return docker("start", "--attach", c.id) }

// newVolume creates a data volume and runs a script in it as root.
func newVolume(t *testing.T, script string) string {
	t.Helper()
	volume := mustDocker(t, "volume", "create", "--label", runLabel)
	dir := ""
	if os.Geteuid() == 0 {
		dir = mustDocker(t, "volume", "inspect", "-f", "{{.Mountpoint}}", volume)
	}
	if script != "" {
		inVolume(t, dir, script, "-v", volume+":/volume", "-w", "/volume")
	}
	return volume
}

// inVolume runs a script as root in the volume's directory, in a container if necessary.
func inVolume(t *testing.T, dir, script string, options ...string) {
	t.Helper()
	if _, err := os.Stat(dir); err != nil {
		if r := runContainer(t, append(options, "--entrypoint", "/bin/sh"), "-ec", script); r.code != 0 {
			t.Fatal(r)
		}
		return
	}
	cmd := exec.Command("sh", "-ec", script)
	cmd.Dir = dir
	if r := command(cmd); r.code != 0 {
		t.Fatal(r)
	}
}

func checkContains(s string, texts ...string) error {
	for _, text := range texts {
		if !strings.Contains(s, text) {
			return fmt.Errorf("no %q in:\n%s", text, s)
		}
	}
	return nil
}

// awaitLines waits until docker logs has all the texts, on either stream.
func (c *container) awaitLines(texts ...string) {
	c.t.Helper()
	for _, text := range texts {
		c.awaitLog(text)
	}
}

// awaitOwned waits until a user owns everything in the directories.
func (c *container) awaitOwned(user string, dirs ...string) {
	c.t.Helper()
	eventually(c.t, settle, func() error { return c.ownedBy(user, dirs...) })
}

func (c *container) exec(cmd ...string) result {
	return docker(append([]string{"exec", c.id}, cmd...)...)
}

func (c *container) execAs(options []string, cmd ...string) result {
	return docker(slices.Concat([]string{"exec"}, options, []string{c.id}, cmd)...)
}

// mustExec runs a command in the container and returns its trimmed output. It ends the test after a
// failure.
func (c *container) mustExec(cmd ...string) string {
	c.t.Helper()
	r := c.exec(cmd...)
	if r.code != 0 {
		c.t.Fatal(r)
	}
	return strings.TrimSpace(r.out)
}

// awaitLog waits until docker logs has a text, on either stream.
func (c *container) awaitLog(text string) {
	c.t.Helper()
	c.awaitOutput(func(out, stderr string) error {
		if !strings.Contains(out, text) && !strings.Contains(stderr, text) {
			return fmt.Errorf("docker logs has no %q", text)
		}
		return nil
	})
}

// awaitOutput waits until docker logs satisfies ok. Log lines may arrive after their visible
// effects, and the two streams independently.
func (c *container) awaitOutput(ok func(out, stderr string) error) {
	c.t.Helper()
	eventually(c.t, settle, func() error { return ok(c.logs()) })
}

// awaitStderr waits until the standard error in docker logs has all of these texts.
func (c *container) awaitStderr(texts ...string) {
	c.t.Helper()
	c.awaitOutput(func(_, stderr string) error { return checkContains(stderr, texts...) })
}

func (c *container) inspect(format string) string {
	c.t.Helper()
	return mustDocker(c.t, "inspect", "--format", format, c.id)
}

// exitCode waits for the end of the container.
func (c *container) exitCode() int {
	c.t.Helper()
	code, err := strconv.Atoi(mustDocker(c.t, "wait", c.id))
	if err != nil {
		c.t.Fatal(err)
	}
	return code
}

// service is the part of a service in "hinit status --json" that the tests use.
type service struct {
	Name, State, Want string
	PID               int
	Restarts          int
	Ready             bool
	CrashLoop         bool `json:"crash_loop"`
	LastExit          *struct {
		Code   *int
		Signal *int
		Cause  string
		Tail   []string
	} `json:"last_exit"`
}

// status is the part of "hinit status --json" that the tests use.
type status struct {
	Init struct {
		PID       int
		Subreaper bool
		Orphans   int
		Warnings  []string
		Boot      []struct{ Name, Error string }
		Repair    *struct {
			Done            bool
			Changed, Failed int
		}
	}
	Services []service
}

func (s status) find(name string) (service, bool) {
	i := slices.IndexFunc(s.Services, func(s service) bool { return s.Name == name })
	if i < 0 {
		return service{}, false
	}
	return s.Services[i], true
}

// set returns the states of all services.
func (s status) set() map[string]string {
	states := map[string]string{}
	for _, s := range s.Services {
		states[s.Name] = s.State
	}
	return states
}

// maxSocketMisses is the number of failed socket requests after which look uses docker exec.
const maxSocketMisses = 8

// readStatus requests the status, from the control socket if possible, because docker exec costs fifty
// times the processor time.
func (c *container) readStatus() (status, error) {
	var s status
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if pid := c.hostPID(ctx); pid > 0 {
		st, err := dial.New(fmt.Sprintf("/proc/%d/root/run/hinit/control.sock", pid)).Status(ctx)
		if err == nil {
			c.misses = 0
			text, err := json.Marshal(st)
			return s, errors.Join(err, json.Unmarshal(text, &s))
		}
		if c.misses++; c.misses < maxSocketMisses && os.Geteuid() == 0 {
			return s, err
		}
	}
	r := c.exec("hinit", "status", "--json")
	if r.code != 0 {
		return s, fmt.Errorf("%v", r)
	}
	return s, json.Unmarshal([]byte(r.out), &s)
}

// engineAPI is a client of the engine's API.
var engineAPI = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", "/var/run/docker.sock")
}}}

// askEngine requests a path of the engine's API. The caller closes the body.
func askEngine(ctx context.Context, path string) (*http.Response, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker"+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	return engineAPI.Do(q)
}

// hostPID returns the PID of the container's init on this machine, or 0.
func (c *container) hostPID(ctx context.Context) int {
	var seen struct{ State struct{ Pid int } }
	r, err := askEngine(ctx, "/containers/"+c.id+"/json")
	if err != nil {
		return 0
	}
	defer r.Body.Close()
	_ = json.NewDecoder(r.Body).Decode(&seen) // If decoding fails, the version stays 0.
	return seen.State.Pid
}

func (c *container) status() status {
	c.t.Helper()
	c.misses = maxSocketMisses
	s, err := c.readStatus()
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

// await waits until a service satisfies ok. Errors name the condition wish.
func (c *container) await(name, wish string, ok func(service) bool) service {
	c.t.Helper()
	var found service
	eventually(c.t, settle, func() error {
		st, err := c.readStatus()
		if err != nil {
			return err
		}
		s, there := st.find(name)
		if !there || !ok(s) {
			return fmt.Errorf("%s is not %s: %+v", name, wish, st.Services)
		}
		found = s
		return nil
	})
	return found
}

// awaitUp waits until services are up and, if they are gateways, ready.
func (c *container) awaitUp(names ...string) {
	c.t.Helper()
	for _, name := range names {
		c.await(name, "up", func(s service) bool {
			return s.State == "up" && (s.Ready || !strings.HasPrefix(name, "gateway-"))
		})
	}
}

// awaitHealthy waits until "hinit healthcheck" succeeds, which includes the end of the boot.
func (c *container) awaitHealthy(options ...string) {
	c.t.Helper()
	eventually(c.t, settle, func() error {
		if r := c.execAs(options, "hinit", "healthcheck"); r.code != 0 {
			return errors.New(r.String())
		}
		return nil
	})
}

// awaitStates waits until the container has exactly these gateways in these states.
func (c *container) awaitStates(want map[string]string) {
	c.t.Helper()
	eventually(c.t, settle, func() error {
		st, err := c.readStatus()
		if err != nil {
			return err
		}
		got := map[string]string{}
		for name, state := range st.set() {
			if strings.HasPrefix(name, "gateway-") {
				got[name] = state
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("the gateways are %v, want %v", got, want)
		}
		return nil
	})
}

// profile returns the files of a profile with a desired state and settings of the example agent.
func profile(name, desired string, knobs ...string) map[string]string {
	home := "/opt/data/"
	if name != "default" {
		home += "profiles/" + name + "/"
	}
	files := map[string]string{home + "SOUL.md": "A test.\n", home + "agent.conf": strings.Join(knobs, "\n") + "\n"}
	if desired != "" {
		files[home+"gateway_state.json"] = fmt.Sprintf(`{"gateway_state":%q,"desired_state":%[1]q}`+"\n", desired)
	}
	return files
}

// mergeProfiles merges sets of files.
func mergeProfiles(sets ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, set := range sets {
		maps.Copy(all, set)
	}
	return all
}

// tail returns the end of a long text.
func tail(s string) string {
	if len(s) > 4000 {
		return "…" + s[len(s)-4000:]
	}
	return s
}

func matches(pattern, s string) bool { return regexp.MustCompile(pattern).MatchString(s) }
