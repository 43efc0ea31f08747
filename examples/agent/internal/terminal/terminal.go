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
	Docker        string // Path of the docker command.
	Image         string
	Task          string
	Profile       string
	Dir           string // Parent of the directories that are mounted at /root and /workspace; "": no such mounts.
	Persist       bool   // Whether the container outlives the process.
	Lifetime      time.Duration
	Env           []string // Value of docker_env: words of the form NAME=value.
	ForwardEnv    []string // Value of docker_forward_env: names of variables.
	DockerArgs    []string // Value of docker_extra_args: arguments for docker.
	TimeoutFactor int      // Factor for the time limits of the docker command; 0 means 1.
}

// Terminal is one container in which the agent runs commands.
type Terminal struct {
	options       Options
	containerID   string // ID of the container.
	sessionID     string
	cwd           string
	hasSnapshot   bool // Whether the snapshot of the shell's environment exists.
	dockerRunArgs []string
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
	t := &Terminal{options: o, sessionID: hex.EncodeToString(b), cwd: "/root"}
	t.removeOldContainers()
	if r := t.runDocker(5*time.Second, "version"); r.Code != 0 {
		return nil, fmt.Errorf("docker command is available but 'docker version' failed: %s", r.Output)
	}
	t.dockerRunArgs = t.runArgs()
	if o.Persist && t.findContainer() {
		return t, t.saveShellEnv()
	}
	if err := t.createContainer(); err != nil {
		return nil, err
	}
	return t, t.saveShellEnv()
}

// Container returns the id of the container.
func (t *Terminal) Container() string { return t.containerID }

// runDocker runs the docker command with a time limit and an empty standard input.
func (t *Terminal) runDocker(limit time.Duration, args ...string) Result {
	r, _ := t.runDockerInput(limit*time.Duration(max(1, t.options.TimeoutFactor)), "", args...)
	return r
}

// runDockerInput runs the docker command. timedOut is true if it was killed with SIGKILL at the time limit.
func (t *Terminal) runDockerInput(limit time.Duration, stdin string, args ...string) (r Result, timedOut bool) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, t.options.Docker, args...)
	for _, name := range t.options.ForwardEnv {
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

// labelArgs returns docker arguments for the container's labels. Each label is prefix and NAME=VALUE, and follows the word flag.
func (t *Terminal) labelArgs(flag, prefix string) []string {
	return []string{
		flag, prefix + "hermes-agent=1", flag, prefix + "hermes-task-id=" + Sanitise(t.options.Task), flag, prefix + "hermes-profile=" + Sanitise(t.options.Profile),
	}
}

var unsafeCharacters = regexp.MustCompile(`[^A-Za-z0-9_.-]`)

// Sanitise turns a name into a valid label value.
func Sanitise(name string) string {
	name = unsafeCharacters.ReplaceAllString(name, "_")
	if len(name) > 63 {
		name = name[:63]
	}
	if name == "" {
		return "unknown"
	}
	return name
}

// findContainer finds the container by its labels, and starts it if it isn't running.
func (t *Terminal) findContainer() bool {
	args := append([]string{"ps", "-a"}, t.labelArgs("--filter", "label=")...)
	r := t.runDocker(10*time.Second, append(args, "--format", "{{.ID}}\t{{.State}}")...)
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
			t.containerID = id
			return true
		}
		if first == "" {
			first, state = id, s
		}
	}
	if state == "" || t.runDocker(30*time.Second, "start", first).Code != 0 {
		return false
	}
	t.containerID = first
	return true
}

// createContainer creates the container with docker run -d. After a failure it removes what is left of the container.
func (t *Terminal) createContainer() error {
	b := make([]byte, 4)
	_, _ = rand.Read(b)
	name := "hermes-" + hex.EncodeToString(b)
	args := []string{"run", "-d"}
	entry := t.runDocker(15*time.Second, "image", "inspect", t.options.Image, "--format", "{{json .Config.Entrypoint}}")
	if !strings.Contains(entry.Output, `"/init"`) {
		args = append(args, "--init")
	}
	args = append(args, "--name", name)
	args = append(append(args, t.labelArgs("--label", "")...), "-w", t.cwd)
	r := t.runDocker(120*time.Second, append(append(args, t.dockerRunArgs...), t.options.Image, "sleep", "infinity")...)
	if r.Code != 0 {
		t.runDocker(10*time.Second, "rm", "-f", name)
		return fmt.Errorf("docker run failed with %d: %s", r.Code, r.Output)
	}
	t.containerID = strings.TrimSpace(r.Output)
	return nil
}

func (t *Terminal) runArgs() []string {
	args := []string{"--cap-drop", "ALL"}
	for _, c := range []string{"DAC_OVERRIDE", "CHOWN", "FOWNER", "SETUID", "SETGID"} {
		args = append(args, "--cap-add", c)
	}
	args = append(args, "--security-opt", "no-new-privileges", "--pids-limit", "256", "--tmpfs", "/tmp:rw,nosuid,size=512m",
		"--tmpfs", "/var/tmp:rw,noexec,nosuid,size=256m", "--tmpfs", "/run:rw,noexec,nosuid,size=64m", "--cpus", "1", "--memory", "512m")
	if t.options.Dir != "" {
		dir := filepath.Join(t.options.Dir, "docker", t.options.Task)
		for _, d := range []string{"home", "workspace"} {
			_ = os.MkdirAll(filepath.Join(dir, d), 0o755) // Ignore the error, because docker reports the reason.
		}
		args = append(args, "-v", filepath.Join(dir, "home")+":/root", "-v", filepath.Join(dir, "workspace")+":/workspace")
	} else {
		args = append(args, "--tmpfs", "/root:rw,exec,size=1g", "--tmpfs", "/home:rw,exec,size=1g", "--tmpfs", "/workspace:rw,exec,size=10g")
	}
	for _, kv := range t.options.Env {
		args = append(args, "-e", kv)
	}
	return append(args, t.options.DockerArgs...)
}

// initEnv returns the docker exec flags that set the environment of a login shell.
func (t *Terminal) initEnv() (flags []string) {
	for _, kv := range t.options.Env {
		flags = append(flags, "-e", kv)
	}
	for _, name := range t.options.ForwardEnv {
		if os.Getenv(name) != "" {
			flags = append(flags, "-e", name)
		}
	}
	return flags
}

func (t *Terminal) tempFile(kind, end string) string {
	return "/tmp/hermes-" + kind + "-" + t.sessionID + end
}
func (t *Terminal) cwdMarker() string { return "__HERMES_CWD_" + t.sessionID + "__" }

func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// saveShellEnv saves the variables, functions and aliases that a login shell sets up to a file in the container. Later commands
// read that file.
func (t *Terminal) saveShellEnv() error {
	snap, cwd := t.tempFile("snap", ".sh"), t.tempFile("cwd", ".txt")
	script := strings.Join([]string{
		"export -p > " + snap,
		"declare -f | grep -vE '^_[^_]' >> " + snap,
		"alias -p >> " + snap,
		"echo 'shopt -s expand_aliases' >> " + snap, "echo 'set +e' >> " + snap, "echo 'set +u' >> " + snap,
		"cd " + shellQuote(t.cwd) + " 2>/dev/null || true",
		"pwd -P > " + cwd, t.printCwdCommand(),
	}, "\n")
	args := append(append([]string{"exec"}, t.initEnv()...), t.containerID, "bash", "-l", "-c", script)
	r, timedOut := t.runDockerInput(30*time.Second*time.Duration(max(1, t.options.TimeoutFactor)), "", args...)
	if timedOut {
		return errors.New("cannot take a snapshot: out of time")
	}
	t.hasSnapshot = true
	t.extractWorkingDir(r.Output)
	return nil
}

func (t *Terminal) printCwdCommand() string {
	return `printf '\n` + t.cwdMarker() + `%s` + t.cwdMarker() + `\n' "$(pwd -P)"`
}

// wrapCommand returns the script that runs a command in the current directory, with the saved environment.
func (t *Terminal) wrapCommand(command string) string {
	var lines []string
	if t.hasSnapshot {
		lines = append(lines, "source "+t.tempFile("snap", ".sh")+" >/dev/null 2>&1 || true")
	}
	lines = append(lines, "builtin cd -- "+quoteDir(t.cwd)+" || exit 126", "eval "+shellQuote(command), "__hermes_ec=$?")
	if t.hasSnapshot {
		lines = append(lines, "export -p > "+t.tempFile("snap", ".sh")+" 2>/dev/null || true")
	}
	lines = append(lines, "pwd -P > "+t.tempFile("cwd", ".txt")+" 2>/dev/null || true", t.printCwdCommand(), "exit $__hermes_ec")
	return strings.Join(lines, "\n")
}

func quoteDir(dir string) string {
	switch {
	case dir == "~":
		return "~"
	case strings.HasPrefix(dir, "~/"):
		return "$HOME/" + shellQuote(dir[2:])
	}
	return shellQuote(dir)
}

// extractWorkingDir removes the working directory from an output, in which the script has printed it between markers. It stores
// the directory in t.cwd and returns the rest of the output.
func (t *Terminal) extractWorkingDir(output string) string {
	m := t.cwdMarker()
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
	script := t.wrapCommand(command)
	r := t.exec(script, stdin, limit)
	if r.Code != 0 && t.options.Persist && isContainerMissing(r.Output) {
		if t.recreateContainer() {
			r = t.exec(script, stdin, limit)
		}
	}
	r.Output = t.extractWorkingDir(r.Output)
	return r
}

func (t *Terminal) exec(script, stdin string, limit time.Duration) Result {
	args := []string{"exec"}
	if stdin != "" {
		args = append(args, "-i")
	}
	shell := []string{t.containerID, "bash", "-c", script}
	if !t.hasSnapshot {
		args = append(args, t.initEnv()...)
		shell = []string{t.containerID, "bash", "-l", "-c", script}
	}
	r, timedOut := t.runDockerInput(limit, stdin, append(args, shell...)...)
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

func (t *Terminal) recreateContainer() bool {
	t.containerID = ""
	return (t.findContainer() || t.createContainer() == nil) && t.saveShellEnv() == nil
}

// Close removes the container. It keeps a persistent container unless force is true.
func (t *Terminal) Close(force bool) {
	if t.containerID == "" || t.options.Persist && !force {
		t.containerID = ""
		return
	}
	t.runDocker(30*time.Second, "stop", "-t", "10", t.containerID)
	t.runDocker(30*time.Second, "rm", "-f", t.containerID)
	t.containerID = ""
}

// removeOldContainers removes the containers of this profile that exited long ago.
func (t *Terminal) removeOldContainers() {
	r := t.runDocker(15*time.Second, "ps", "-a", "--filter", "label=hermes-agent=1", "--filter", "status=exited",
		"--filter", "label=hermes-profile="+Sanitise(t.options.Profile), "--format", "{{.ID}}")
	if r.Code != 0 {
		return
	}
	most := 2 * max(time.Minute, t.options.Lifetime)
	for id := range strings.FieldsSeq(r.Output) {
		at := strings.TrimSpace(t.runDocker(10*time.Second, "inspect", "--format", "{{.State.FinishedAt}}", id).Output)
		ended, err := time.Parse(time.RFC3339Nano, at)
		if err == nil && ended.Year() > 1 && time.Since(ended) >= most {
			t.runDocker(30*time.Second, "rm", "-f", id)
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
	for name, list := range map[string]*[]string{"TERMINAL_DOCKER_FORWARD_ENV": &o.ForwardEnv, "TERMINAL_DOCKER_EXTRA_ARGS": &o.DockerArgs} {
		if err := json.Unmarshal([]byte(cmp.Or(getenv(name), "[]")), list); err != nil {
			return o, fmt.Errorf("%s: %w", name, err)
		}
	}
	if n, err := strconv.Atoi(getenv("TERMINAL_LIFETIME_SECONDS")); err == nil {
		o.Lifetime = time.Duration(n) * time.Second
	}
	// Ignore the error; only tests set this variable, for machines that are many times as slow.
	o.TimeoutFactor, _ = strconv.Atoi(getenv("EXAMPLE_AGENT_SLOW"))
	return o, nil
}
