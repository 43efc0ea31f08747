package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/samber/lo"

	"hinit/internal/dotenv"
	"hinit/internal/wholefile"
	"hinit/sandbox/mux"
)

// Options say how sandboxes are made and kept. The zero value is not usable: start with [DefaultOptions] or [FromEnv].
type Options struct {
	Image string
	// Names of variables that are passed on, with the values of this process or otherwise of the profile's .env.
	ForwardEnv []string
	Env        map[string]string // variables of the container; every user who may inspect the container can see them
	Volumes    []Mount
	ExtraArgs  []string // flags of docker run, which are applied after all other settings

	Credentials []string // files of the profile that commands may read below /root/.hermes, as paths below Home

	MountCwd     bool // Mount HostCwd as /workspace.
	HostUser     bool // Run commands as the user of this process.
	PersistFS    bool // Keep /root and /workspace in directories of the host, so that they outlive the container.
	SweepOrphans bool // Remove orphaned containers when the first sandbox is opened.
	CPUs         float64
	MemoryMB     int64
	DiskMB       int64
	Cwd          string        // directory in which the first command starts
	HostCwd      string        // directory of the host for MountCwd
	Timeout      time.Duration // time limit of a command that sets none
	Lifetime     time.Duration // how long an unused sandbox is kept

	Home       string // directory of the profile: HERMES_HOME
	Dir        string // Root of the sandboxes' directories. It is created if it is missing.
	AttachOnly bool   // Run commands through an exec of the engine, because the engine can't or must not mount State.
	// Private state of this package; "" for .hinit in Dir. A user that can write to it could make the engine mount other
	// files.
	State   string
	Profile string
	Network string // "none", or a name; "" for the engine's default
	Runtime string // a runtime of the engine, such as "runc", "runsc" or "kata"; "" for the engine's default
	Shell   string // shell for commands; "" for bash, or sh if the image has no bash
	Session string // Name of the session. Processes with the same session share the directory and variables; "" for a session of this Manager alone.

	HelperPath    string // path of hinit-sandbox-helper; "" to look beside the program and in PATH
	EngineAddress string // address of the engine; "" for DOCKER_HOST, the current docker context, or an existing socket

	RootDescription string // description of the host's user to which root in the container is mapped; shown by Describe
	NoRootHint      string // hint that is printed once, after a command that failed as if it needed root; "" for none

	Warn func(string) // Receives warnings for people, and must not block; nil: drop warnings.
}

// DefaultOptions returns the options that apply if no environment variable is set.
func DefaultOptions() Options {
	return Options{
		Image: "nikolaik/python-nodejs:python3.11-nodejs20", PersistFS: true, SweepOrphans: true,
		CPUs: 1, MemoryMB: 5120, DiskMB: 51200, Cwd: "/root", Timeout: 180 * time.Second, Lifetime: 300 * time.Second,
		Profile: "default",
	}
}

// FromEnv reads the options from the agent's environment variables, such as TERMINAL_DOCKER_IMAGE. A variable that is not set
// leaves the default. The error joins an *OptionError for each invalid value. For some variables, FromEnv only warns of an
// invalid value, as the agent does.
func FromEnv(lookup func(string) (string, bool)) (opts Options, warnings []string, err error) {
	opts = DefaultOptions()
	e := envReader{lookup: lookup}
	opts.Image = e.text("TERMINAL_DOCKER_IMAGE", opts.Image)
	if strings.ContainsFunc(opts.Image, func(r rune) bool { return r <= ' ' }) || strings.HasPrefix(opts.Image, "-") {
		e.addInvalid("TERMINAL_DOCKER_IMAGE", opts.Image, "the name of an image, such as debian:12")
	}
	opts.ForwardEnv = e.variableNames("TERMINAL_DOCKER_FORWARD_ENV")
	opts.Env = e.jsonVariables("TERMINAL_DOCKER_ENV")
	opts.Volumes = e.volumeMounts("TERMINAL_DOCKER_VOLUMES")
	opts.ExtraArgs = e.jsonList("TERMINAL_DOCKER_EXTRA_ARGS")
	if _, err := (&Spec{}).ApplyFlags(opts.ExtraArgs); err != nil {
		e.addInvalid("TERMINAL_DOCKER_EXTRA_ARGS", strings.Join(opts.ExtraArgs, " "), "flags of docker run: "+err.Error())
	}
	opts.MountCwd = e.boolean("TERMINAL_DOCKER_MOUNT_CWD_TO_WORKSPACE", false)
	opts.HostUser = e.boolean("TERMINAL_DOCKER_RUN_AS_HOST_USER", false)
	opts.SweepOrphans = e.boolean("TERMINAL_DOCKER_ORPHAN_REAPER", true)
	opts.PersistFS = e.boolean("TERMINAL_CONTAINER_PERSISTENT", true)
	opts.CPUs = e.number("TERMINAL_CONTAINER_CPU", opts.CPUs)
	opts.MemoryMB = e.integer("TERMINAL_CONTAINER_MEMORY", opts.MemoryMB, "a number of megabytes, 0 for no limit")
	opts.DiskMB = e.integer("TERMINAL_CONTAINER_DISK", opts.DiskMB, "a number of megabytes, 0 for no limit")
	opts.Timeout = time.Duration(e.integer("TERMINAL_TIMEOUT", int64(opts.Timeout/time.Second), "a number of seconds")) * time.Second
	opts.Lifetime = time.Duration(e.integer("TERMINAL_LIFETIME_SECONDS", int64(opts.Lifetime/time.Second), "a number of seconds")) * time.Second
	opts.Network = e.text("TERMINAL_DOCKER_NETWORK", "")
	opts.Runtime = e.text("HINIT_SANDBOX_RUNTIME", "")
	opts.Credentials = e.jsonList("HINIT_SANDBOX_CREDENTIALS")
	opts.Shell = e.text("HINIT_SANDBOX_SHELL", "")
	opts.HelperPath = e.text("HINIT_SANDBOX_HELPER", "")
	opts.EngineAddress = e.text("DOCKER_HOST", "")
	if opts.EngineAddress != "" {
		if _, err := checkAddress(address{host: opts.EngineAddress}, "DOCKER_HOST"); err != nil {
			e.errs = append(e.errs, err)
		}
	}
	opts.Home, opts.Profile = e.readHome()
	opts.Dir = e.text("TERMINAL_SANDBOX_DIR", "")
	if opts.Dir == "" {
		opts.Dir = filepath.Join(opts.Home, "sandboxes")
	} else if opts.Dir, err = filepath.Abs(opts.Dir); err != nil {
		e.addInvalid("TERMINAL_SANDBOX_DIR", opts.Dir, "a path")
	}
	if strings.ContainsAny(opts.Dir, ":,") {
		e.addInvalid("TERMINAL_SANDBOX_DIR", opts.Dir, "a path without colons and commas, which separate the parts of a mount")
	}
	e.readCwd(&opts)
	return opts, e.warnings, errors.Join(e.errs...)
}

// envReader reads environment variables and collects warnings and errors.
type envReader struct {
	lookup   func(string) (string, bool)
	warnings []string
	errs     []error
}

func (e *envReader) warn(format string, args ...any) {
	e.warnings = append(e.warnings, fmt.Sprintf(format, args...))
}

func (e *envReader) addInvalid(name, value, want string) {
	if len(value) > 200 {
		value = value[:200] + "…"
	}
	e.errs = append(e.errs, &OptionError{name, value, want})
}

// get returns the value of a variable without surrounding white space. It returns false if the variable is unset or blank.
func (e *envReader) get(name string) (string, bool) {
	text, set := e.lookup(name)
	text = strings.TrimSpace(text)
	return text, set && text != ""
}

func (e *envReader) text(name, def string) string {
	text, set := e.get(name)
	if !set {
		return def
	}
	if strings.ContainsAny(text, "\x00\n") {
		e.addInvalid(name, text, "one line")
	}
	return text
}

func (e *envReader) boolean(name string, def bool) bool {
	text, set := e.lookup(name)
	if !set {
		return def
	}
	return slices.Contains([]string{"true", "1", "yes"}, strings.ToLower(text))
}

// readValue returns the value of a variable, converted by parse. If the variable is unset or invalid, it returns def, and
// records an error for an invalid value.
func readValue[T any](e *envReader, name, want string, def T, parse func(string) (T, bool)) T {
	text, set := e.get(name)
	if !set {
		return def
	}
	value, ok := parse(text)
	if !ok {
		e.addInvalid(name, text, want)
		return def
	}
	return value
}

func (e *envReader) number(name string, def float64) float64 {
	return readValue(e, name, "a number of processors such as 1 or 0.5, 0 for no limit", def, func(text string) (float64, bool) {
		n, err := strconv.ParseFloat(text, 64)
		return n, err == nil && n >= 0 && n <= 1e6 // This comparison is false for NaN.
	})
}

func (e *envReader) integer(name string, def int64, want string) int64 {
	return readValue(e, name, want, def, func(text string) (int64, bool) {
		n, err := strconv.ParseInt(text, 10, 32)
		return n, err == nil && n >= 0
	})
}

// parseJSON returns the value of a variable that contains JSON, or def if the variable is not set or not JSON.
func (e *envReader) parseJSON(name, want string, def any) any {
	return readValue(e, name, want, def, func(text string) (value any, ok bool) {
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		err := d.Decode(&value)
		return value, err == nil && !d.More()
	})
}

// jsonTexts returns a JSON list of strings. It leaves out items that are not strings, with a warning. ok is false if the
// value is not a list.
func (e *envReader) jsonTexts(name, want string) (out []string, ok bool) {
	items, ok := e.parseJSON(name, want, []any{}).([]any)
	for _, item := range items {
		if text, is := item.(string); is {
			out = append(out, text)
		} else {
			e.warn("%s: %v is not a string, and is left out", name, item)
		}
	}
	return out, ok
}

func (e *envReader) jsonList(name string) []string {
	out, ok := e.jsonTexts(name, `a JSON array of strings, such as ["--shm-size","1g"]`)
	if !ok {
		e.warn("%s is not a JSON array: nothing of it is used", name)
	}
	return out
}

// variableNames returns a list of variable names without duplicates.
func (e *envReader) variableNames(name string) (out []string) {
	const want = `a JSON array of names of variables, such as ["API_KEY"]`
	texts, ok := e.jsonTexts(name, want)
	if !ok {
		text, _ := e.get(name)
		e.addInvalid(name, text, want)
	}
	for _, text := range texts {
		switch text = strings.TrimSpace(text); {
		case text == "" || slices.Contains(out, text):
		case !mux.ValidName(text):
			e.warn("%s: %q is no name of a variable, and is left out", name, text)
		default:
			out = append(out, text)
		}
	}
	return out
}

// jsonVariables returns variables from a JSON object. It leaves out values that are not strings, numbers or booleans, with a
// warning.
func (e *envReader) jsonVariables(name string) map[string]string {
	out := make(map[string]string)
	items, ok := e.parseJSON(name, `a JSON object, such as {"LANG":"C.UTF-8"}`, map[string]any{}).(map[string]any)
	if !ok {
		e.warn("%s: it is not a JSON object: nothing of it is used", name)
	}
	for key, value := range items {
		key = strings.TrimSpace(key)
		if !mux.ValidName(key) {
			e.warn("%s: %q is no name of a variable, and is left out", name, key)
			continue
		}
		switch v := value.(type) {
		case string:
			out[key] = v
		case bool:
			out[key] = lo.Ternary(v, "True", "False")
		case json.Number:
			out[key] = v.String()
		default:
			e.warn("%s: the value of %s is neither text nor a number, and is left out", name, key)
		}
	}
	return out
}

func (e *envReader) volumeMounts(name string) (out []Mount) {
	for _, volume := range e.jsonList(name) {
		switch volume = strings.TrimSpace(volume); {
		case volume == "":
		case !strings.Contains(volume, ":"):
			e.warn("%s: %q has no colon, and is left out", name, volume)
		default:
			m, err := parseVolume(volume, mountOptions...)
			if err != nil {
				e.addInvalid(name, volume, "host:container or host:container:ro: "+err.Error())
			}
			out = append(out, m)
		}
	}
	return out
}

// readHome returns the profile's directory, and the profile's name as derived from the directory.
func (e *envReader) readHome() (dir, profile string) {
	user, _ := os.UserHomeDir()
	def := filepath.Join(user, ".hermes")
	dir = e.text("HERMES_HOME", def)
	if !filepath.IsAbs(dir) {
		e.addInvalid("HERMES_HOME", dir, "an absolute path")
	}
	dir = filepath.Clean(dir)
	switch {
	case filepath.Base(filepath.Dir(dir)) == "profiles":
		return dir, filepath.Base(dir)
	case dir == def, dir == "/opt/data":
		return dir, "default"
	}
	return dir, "custom"
}

// hostPathPrefixes are the beginnings of paths that exist on a person's machine but not in a container. A working directory with
// such a path is a mistake.
var hostPathPrefixes = []string{"/Users/", "/home/", `C:\`, "C:/"}

func isHostPath(path string) bool {
	return slices.ContainsFunc(hostPathPrefixes, func(prefix string) bool { return strings.HasPrefix(path, prefix) })
}

// readCwd sets the directory in which commands start, and the directory of the host to mount there.
func (e *envReader) readCwd(opts *Options) {
	dir := e.text("TERMINAL_CWD", "")
	if opts.MountCwd {
		source := dir
		if source == "" {
			source, _ = os.Getwd()
		}
		info, err := os.Stat(source)
		real := err == nil && info.IsDir() && filepath.IsAbs(source) && !strings.HasPrefix(source+"/", "/workspace/") && !strings.HasPrefix(source+"/", "/root/")
		if isHostPath(source) || real {
			opts.HostCwd, opts.Cwd = source, "/workspace"
			return
		}
	}
	switch {
	case dir == "":
	case dir == "~", strings.HasPrefix(dir, "~/"):
		opts.Cwd = path.Join("/root", dir[1:])
	case !filepath.IsAbs(dir) || isHostPath(dir):
		e.warn("TERMINAL_CWD=%q is not a path inside the container: commands begin in %s", dir, opts.Cwd)
	default:
		opts.Cwd = dir
	}
}

// maxDotenv limits the size of a .env file, which an agent can write.
const maxDotenv = 1 << 20

// Dotenv reads a profile's .env file. A missing file counts as empty.
func Dotenv(path string) (map[string]string, error) {
	data, err := wholefile.Read(path, maxDotenv)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot read the variables of the profile: %w", err)
	}
	return lo.FilterSliceToMap(dotenv.Parse(string(data)), func(v dotenv.Var) (string, string, bool) {
		return v.Name, v.Value(), mux.ValidName(v.Name)
	}), nil
}
