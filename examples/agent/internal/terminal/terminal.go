// Package terminal runs the agent's commands in one long-lived container, with the docker command. It makes exactly the
// docker calls of the Hermes agent, with their flags and in their order. The package doesn't know hinit, so tests use it to
// check hinit's replacement of the docker command.
//
// No goroutine of the package outlives a call.
package terminal

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Options holds the settings that the agent reads from its environment.
type Options struct {
	Docker   string // Path of the docker command.
	Image    string
	Task     string
	Profile  string
	Dir      string // Parent of the directories that are mounted at /root and /workspace; "": no such mounts.
	Persist  bool   // Whether the container outlives the process.
	Lifetime time.Duration
	Env      []string // Value of docker_env: words of the form NAME=value.
	Forward  []string // Value of docker_forward_env: names of variables.
	Extra    []string // Value of docker_extra_args: arguments for docker.
	Slow     int      // Factor for the time limits of the docker command; 0 means 1.
}

// Terminal is one container in which the agent runs commands.
type Terminal struct {
	opt     Options
	id      string // ID of the container.
	session string
	cwd     string
	ready   bool // Whether the snapshot of the shell's environment exists.
	run     []string
}

// Result is the output and the exit code of a command.
type Result struct {
	Output string `json:"output"`
	Code   int    `json:"exit_code"`
}

// New prepares the container. It removes old containers, checks that docker works, finds or creates the container, and takes
// a snapshot of the shell's environment.
func New(o Options) (*Terminal, error) {
	b := make([]byte, 6)
	_, _ = rand.Read(b)
	t := &Terminal{opt: o, session: hex.EncodeToString(b), cwd: "/root"}
	t.reap()
	if r := t.docker(5*time.Second, "version"); r.Code != 0 {
		return nil, fmt.Errorf("docker command is available but 'docker version' failed: %s", r.Output)
	}
	t.run = t.runArgs()
	if o.Persist && t.attach() {
		return t, t.snapshot()
	}
	if err := t.create(); err != nil {
		return nil, err
	}
	return t, t.snapshot()
}

// Container returns the id of the container.
func (t *Terminal) Container() string { return t.id }

// docker runs the docker command with a time limit and an empty standard input.
func (t *Terminal) docker(limit time.Duration, args ...string) Result {
	r, _ := t.client(limit*time.Duration(max(1, t.opt.Slow)), "", args...)
	return r
}

// client runs the docker command. timedOut is true if it was killed with SIGKILL at the time limit.
func (t *Terminal) client(limit time.Duration, stdin string, args ...string) (r Result, timedOut bool) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, t.opt.Docker, args...)
	for _, name := range t.opt.Forward {
		cmd.Env = append(os.Environ(), name+"="+os.Getenv(name))
	}
	if stdin != "" {
		cmd.Stdin = strings.NewReader(stdin)
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second // A grandchild may keep the pipe open, so wait no longer.
	err := cmd.Run()
	r = Result{Output: out.String(), Code: cmd.ProcessState.ExitCode()}
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) && ctx.Err() == nil {
		r.Output += err.Error()
	}
	return r, ctx.Err() != nil
}

// labels returns docker arguments for the container's labels. Each label is prefix and NAME=VALUE, and follows the word flag.
func (t *Terminal) labels(flag, prefix string) []string {
	return []string{
		flag, prefix + "hermes-agent=1", flag, prefix + "hermes-task-id=" + Sanitise(t.opt.Task), flag, prefix + "hermes-profile=" + Sanitise(t.opt.Profile),
	}
}

var unsafe = regexp.MustCompile(`[^A-Za-z0-9_.-]`)

// Sanitise turns a name into a valid label value.
func Sanitise(name string) string {
	name = unsafe.ReplaceAllString(name, "_")
	if len(name) > 63 {
		name = name[:63]
	}
	if name == "" {
		return "unknown"
	}
	return name
}

// attach finds the container by its labels, and starts it if it isn't running.
func (t *Terminal) attach() bool {
	args := append([]string{"ps", "-a"}, t.labels("--filter", "label=")...)
	r := t.docker(10*time.Second, append(args, "--format", "{{.ID}}\t{{.State}}")...)
	if r.Code != 0 {
		return false
	}
	var first, state string
	for line := range strings.Lines(r.Output) {
		id, s, tab := strings.Cut(strings.TrimSpace(line), "\t")
		if !tab {
			continue
		}
		if s = strings.ToLower(s); s == "running" {
			t.id = id
			return true
		}
		if first == "" {
			first, state = id, s
		}
	}
	if state == "" || t.docker(30*time.Second, "start", first).Code != 0 {
		return false
	}
	t.id = first
	return true
}

// create creates the container with docker run -d. After a failure it removes what is left of the container.
func (t *Terminal) create() error {
	b := make([]byte, 4)
	_, _ = rand.Read(b)
	name := "hermes-" + hex.EncodeToString(b)
	args := []string{"run", "-d"}
	entry := t.docker(15*time.Second, "image", "inspect", t.opt.Image, "--format", "{{json .Config.Entrypoint}}")
	if !strings.Contains(entry.Output, `"/init"`) {
		args = append(args, "--init")
	}
	args = append(args, "--name", name)
	args = append(append(args, t.labels("--label", "")...), "-w", t.cwd)
	r := t.docker(120*time.Second, append(append(args, t.run...), t.opt.Image, "sleep", "infinity")...)
	if r.Code != 0 {
		t.docker(10*time.Second, "rm", "-f", name)
		return fmt.Errorf("docker run failed with %d: %s", r.Code, r.Output)
	}
	t.id = strings.TrimSpace(r.Output)
	return nil
}

func (t *Terminal) runArgs() []string {
	args := []string{"--cap-drop", "ALL"}
	for _, c := range []string{"DAC_OVERRIDE", "CHOWN", "FOWNER", "SETUID", "SETGID"} {
		args = append(args, "--cap-add", c)
	}
	args = append(args, "--security-opt", "no-new-privileges", "--pids-limit", "256", "--tmpfs", "/tmp:rw,nosuid,size=512m",
		"--tmpfs", "/var/tmp:rw,noexec,nosuid,size=256m", "--tmpfs", "/run:rw,noexec,nosuid,size=64m", "--cpus", "1", "--memory", "512m")
	if t.opt.Dir != "" {
		dir := filepath.Join(t.opt.Dir, "docker", t.opt.Task)
		for _, d := range []string{"home", "workspace"} {
			_ = os.MkdirAll(filepath.Join(dir, d), 0o755) // Ignore the error, because docker reports the reason.
		}
		args = append(args, "-v", filepath.Join(dir, "home")+":/root", "-v", filepath.Join(dir, "workspace")+":/workspace")
	} else {
		args = append(args, "--tmpfs", "/root:rw,exec,size=1g", "--tmpfs", "/home:rw,exec,size=1g", "--tmpfs", "/workspace:rw,exec,size=10g")
	}
	for _, kv := range t.opt.Env {
		args = append(args, "-e", kv)
	}
	return append(args, t.opt.Extra...)
}

// initEnv returns the docker exec flags that set the environment of a login shell.
func (t *Terminal) initEnv() (flags []string) {
	for _, kv := range t.opt.Env {
		flags = append(flags, "-e", kv)
	}
	for _, name := range t.opt.Forward {
		if os.Getenv(name) != "" {
			flags = append(flags, "-e", name)
		}
	}
	return flags
}

func (t *Terminal) file(kind, end string) string {
	return "/tmp/hermes-" + kind + "-" + t.session + end
}
func (t *Terminal) marker() string { return "__HERMES_CWD_" + t.session + "__" }

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// snapshot saves the variables, functions and aliases that a login shell sets up to a file in the container. Later commands read
// that file.
func (t *Terminal) snapshot() error {
	snap, cwd := t.file("snap", ".sh"), t.file("cwd", ".txt")
	script := strings.Join([]string{
		"export -p > " + snap,
		"declare -f | grep -vE '^_[^_]' >> " + snap,
		"alias -p >> " + snap,
		"echo 'shopt -s expand_aliases' >> " + snap, "echo 'set +e' >> " + snap, "echo 'set +u' >> " + snap,
		"cd " + quote(t.cwd) + " 2>/dev/null || true",
		"pwd -P > " + cwd, t.print(),
	}, "\n")
	args := append(append([]string{"exec"}, t.initEnv()...), t.id, "bash", "-l", "-c", script)
	r, timedOut := t.client(30*time.Second*time.Duration(max(1, t.opt.Slow)), "", args...)
	if timedOut {
		return errors.New("cannot take a snapshot: out of time")
	}
	t.ready = true
	t.takeWorkingDir(r.Output)
	return nil
}

func (t *Terminal) print() string {
	return `printf '\n` + t.marker() + `%s` + t.marker() + `\n' "$(pwd -P)"`
}

// wrap returns the script that runs a command in the current directory, with the saved environment.
func (t *Terminal) wrap(command string) string {
	var lines []string
	if t.ready {
		lines = append(lines, "source "+t.file("snap", ".sh")+" >/dev/null 2>&1 || true")
	}
	lines = append(lines, "builtin cd -- "+quoteDir(t.cwd)+" || exit 126", "eval "+quote(command), "__hermes_ec=$?")
	if t.ready {
		lines = append(lines, "export -p > "+t.file("snap", ".sh")+" 2>/dev/null || true")
	}
	lines = append(lines, "pwd -P > "+t.file("cwd", ".txt")+" 2>/dev/null || true", t.print(), "exit $__hermes_ec")
	return strings.Join(lines, "\n")
}

func quoteDir(dir string) string {
	switch {
	case dir == "~":
		return "~"
	case strings.HasPrefix(dir, "~/"):
		return "$HOME/" + quote(dir[2:])
	}
	return quote(dir)
}

// takeWorkingDir removes the working directory from an output, in which the script has printed it between markers. It stores the
// directory in t.cwd and returns the rest of the output.
func (t *Terminal) takeWorkingDir(output string) string {
	m := t.marker()
	last := strings.LastIndex(output, m)
	if last < 0 {
		return output
	}
	from := max(0, last-4096)
	before := strings.LastIndex(output[from:last], m)
	if before < 0 {
		return output
	}
	before += from
	if dir := strings.TrimSpace(output[before+len(m) : last]); dir != "" {
		t.cwd = dir
	}
	end := last + len(m)
	if i := strings.IndexByte(output[end:], '\n'); i >= 0 {
		end += i + 1
	} else {
		end = len(output)
	}
	if before > 0 && output[before-1] == '\n' {
		before--
	}
	return output[:before] + output[end:]
}

// Exec runs a command. At the time limit, it kills only the docker command, and not the command in the container. If the
// container seems to be gone, Exec creates it again and repeats the command once.
func (t *Terminal) Exec(command, stdin string, limit time.Duration) Result {
	script := t.wrap(command)
	r := t.exec(script, stdin, limit)
	if r.Code != 0 && t.opt.Persist && isContainerMissing(r.Output) {
		if t.recover() {
			r = t.exec(script, stdin, limit)
		}
	}
	r.Output = t.takeWorkingDir(r.Output)
	return r
}

func (t *Terminal) exec(script, stdin string, limit time.Duration) Result {
	args := []string{"exec"}
	if stdin != "" {
		args = append(args, "-i")
	}
	shell := []string{t.id, "bash", "-c", script}
	if !t.ready {
		args = append(args, t.initEnv()...)
		shell = []string{t.id, "bash", "-l", "-c", script}
	}
	r, timedOut := t.client(limit, stdin, append(args, shell...)...)
	if timedOut {
		if r.Output != "" {
			r.Output += "\n"
		}
		return Result{r.Output + fmt.Sprintf("[Command timed out after %gs]", limit.Seconds()), 124}
	}
	return r
}

func isContainerMissing(output string) bool {
	return strings.Contains(output, "No such container") || strings.Contains(output, "no such container") || strings.Contains(output, "is not running")
}

func (t *Terminal) recover() bool {
	t.id = ""
	return (t.attach() || t.create() == nil) && t.snapshot() == nil
}

// Close removes the container. It keeps a persistent container unless force is true.
func (t *Terminal) Close(force bool) {
	if t.id == "" || t.opt.Persist && !force {
		t.id = ""
		return
	}
	t.docker(30*time.Second, "stop", "-t", "10", t.id)
	t.docker(30*time.Second, "rm", "-f", t.id)
	t.id = ""
}

// reap removes the containers of this profile that exited long ago.
func (t *Terminal) reap() {
	r := t.docker(15*time.Second, "ps", "-a", "--filter", "label=hermes-agent=1", "--filter", "status=exited",
		"--filter", "label=hermes-profile="+Sanitise(t.opt.Profile), "--format", "{{.ID}}")
	if r.Code != 0 {
		return
	}
	most := 2 * max(time.Minute, t.opt.Lifetime)
	for id := range strings.FieldsSeq(r.Output) {
		at := strings.TrimSpace(t.docker(10*time.Second, "inspect", "--format", "{{.State.FinishedAt}}", id).Output)
		ended, err := time.Parse(time.RFC3339Nano, at)
		if err == nil && ended.Year() > 1 && time.Since(ended) >= most {
			t.docker(30*time.Second, "rm", "-f", id)
		}
	}
}

// FromEnv reads the options from the agent's environment variables.
func FromEnv(getenv func(string) string, home, profile string) (Options, error) {
	o := Options{Image: getenv("TERMINAL_DOCKER_IMAGE"), Task: "default", Profile: profile, Persist: true, Lifetime: 300 * time.Second}
	for _, path := range []string{getenv("HERMES_DOCKER_BINARY"), "docker"} {
		if found, err := exec.LookPath(path); err == nil {
			o.Docker = found
			break
		}
	}
	if o.Docker == "" {
		return o, errors.New("docker executable not found in PATH or known install locations")
	}
	yes := func(name string, unset bool) bool {
		switch strings.ToLower(getenv(name)) {
		case "":
			return unset
		case "1", "true", "yes":
			return true
		}
		return false
	}
	o.Persist = yes("TERMINAL_DOCKER_PERSIST_ACROSS_PROCESSES", true)
	if yes("TERMINAL_CONTAINER_PERSISTENT", true) {
		o.Dir = getenv("TERMINAL_SANDBOX_DIR")
		if o.Dir == "" {
			o.Dir = filepath.Join(home, "sandboxes")
		}
	}
	for name, list := range map[string]*[]string{"TERMINAL_DOCKER_FORWARD_ENV": &o.Forward, "TERMINAL_DOCKER_EXTRA_ARGS": &o.Extra} {
		if err := json.Unmarshal([]byte(cmp.Or(getenv(name), "[]")), list); err != nil {
			return o, fmt.Errorf("%s: %w", name, err)
		}
	}
	if n, err := strconv.Atoi(getenv("TERMINAL_LIFETIME_SECONDS")); err == nil {
		o.Lifetime = time.Duration(n) * time.Second
	}
	// Ignore the error; only tests set this variable, for machines that are many times as slow.
	o.Slow, _ = strconv.Atoi(getenv("EXAMPLE_AGENT_SLOW"))
	return o, nil
}
