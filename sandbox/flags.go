package sandbox

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// ApplyFlags parses flags of docker run into the Spec. It stops at the first argument that is not a flag, and returns the
// rest: image and command. For -e NAME it takes the value from this process's environment. After an error, the Spec is
// incomplete and must not be used.
func (s *Spec) ApplyFlags(args []string) (rest []string, err error) {
	f := NewFlags()
	f.SetInterspersed(false)
	var env []string
	s.Flags(f, &env)
	if err := f.Parse(args); err != nil {
		return nil, fmt.Errorf("cannot use the flags of docker run: %w", err)
	}
	s.Env = append(s.Env, SortedAssignments(FlagVariables(env, InheritedVariables(env)))...)
	return f.Args(), nil
}

// NewFlags returns an empty flag set that parses as the docker command does and prints nothing.
func NewFlags() *pflag.FlagSet {
	f := pflag.NewFlagSet("docker", pflag.ContinueOnError)
	f.Usage = func() {}
	return f
}

// Flags defines the flags of docker run that a sandbox supports. Each flag sets a field of the Spec, but -e appends its value
// to env.
func (s *Spec) Flags(f *pflag.FlagSet, env *[]string) {
	for name, text := range map[string]*string{
		"name": &s.Name, "network": &s.Network, "net": &s.Network, "pid": &s.PIDMode, "ipc": &s.IPCMode, "uts": &s.UTSMode, "userns": &s.UserNS,
		"cgroupns": &s.CgroupNS, "runtime": &s.Runtime, "restart": &s.Restart,
	} {
		f.StringVar(text, name, *text, "")
	}
	f.StringVarP(&s.User, "user", "u", s.User, "")
	f.StringVarP(&s.Dir, "workdir", "w", s.Dir, "")
	f.StringVarP(&s.Hostname, "hostname", "h", s.Hostname, "")
	f.BoolVar(&s.Init, "init", s.Init, "")
	f.BoolVar(&s.Privileged, "privileged", s.Privileged, "")
	f.BoolVar(&s.ReadOnly, "read-only", s.ReadOnly, "")
	f.Int64Var(&s.PidsLimit, "pids-limit", s.PidsLimit, "")
	for name, list := range map[string]*[]string{
		"cap-drop": &s.CapDrop, "cap-add": &s.CapAdd, "security-opt": &s.SecurityOpt, "device": &s.Devices, "group-add": &s.Groups, "dns": &s.DNS, "add-host": &s.Hosts,
	} {
		f.Func(name, "", appendTo(list))
	}
	f.FuncP("publish", "p", "", appendTo(&s.Ports))
	f.FuncP("env", "e", "", appendTo(env))
	f.FuncP("memory", "m", "", parseSize(&s.Memory))
	f.Func("shm-size", "", parseSize(&s.ShmSize))
	f.FuncP("label", "l", "", parsePair(&s.Labels))
	f.Func("storage-opt", "", parsePair(&s.Storage))
	f.Func("ulimit", "", parsePair(&s.Ulimits))
	f.Func("tmpfs", "", s.addMount(parseTmpfs))
	f.FuncP("volume", "v", "", s.addMount(func(v string) (Mount, error) { return parseVolume(v) }))
	f.Func("mount", "", s.addMount(parseMount))
	f.Func("entrypoint", "", func(v string) error {
		s.Entrypoint = []string{v}
		return nil
	})
	f.Func("cpus", "", func(v string) (err error) {
		if s.CPUs, err = strconv.ParseFloat(v, 64); err == nil && (math.IsNaN(s.CPUs) || math.IsInf(s.CPUs, 0)) {
			err = errors.New("it must be a number")
		}
		return err
	})
}

// appendTo returns a function that appends the value of a flag to a list, because a flag may be given several times.
func appendTo(list *[]string) func(string) error {
	return func(v string) error {
		*list = append(*list, v)
		return nil
	}
}

// parseSize returns a function that parses the value of a flag as a size, such as 512m, 1g or 10485760b, and stores the bytes
// in to.
func parseSize(to *int64) func(string) error {
	return func(v string) (err error) {
		if *to, err = parseBytes(v); err != nil || *to < 0 {
			err = errors.New("it must be a size such as 512m")
		}
		return err
	}
}

// parsePair returns a function that parses the value of a flag as NAME=VALUE, and adds it to a map.
func parsePair(to *map[string]string) func(string) error {
	return func(v string) error {
		name, value, _ := strings.Cut(v, "=")
		if name == "" {
			return errors.New("it must be NAME=VALUE")
		}
		if *to == nil {
			*to = make(map[string]string)
		}
		(*to)[name] = value
		return nil
	}
}

// addMount returns a function that parses the value of a flag and adds the mount. It adds an invalid mount too, so that
// [Spec.FindEscape] sees everything that the caller asks for.
func (s *Spec) addMount(parse func(string) (Mount, error)) func(string) error {
	return func(v string) error {
		m, err := parse(v)
		s.Mounts = append(s.Mounts, m)
		return err
	}
}

// parseTmpfs parses the value of --tmpfs: target[:options].
func parseTmpfs(v string) (m Mount, err error) {
	m.Type = "tmpfs"
	if m.Target, m.Options, _ = strings.Cut(v, ":"); !filepath.IsAbs(m.Target) {
		err = errors.New("the path must be absolute")
	}
	return m, err
}

// mountOptions are the options that an operator's volumes may have. An agent's volumes may have none of them. With rshared,
// for example, a mount that the agent makes in the container would appear on the host.
var mountOptions = strings.Fields("z Z cached delegated consistent nocopy rprivate private rshared shared rslave slave")

// parseVolume parses the value of -v: [source:]target[:option,...]. The source is a path or the name of a volume; "~/" is the
// home directory of this user. Valid options are ro, rw and the words in options.
func parseVolume(v string, options ...string) (Mount, error) {
	parts := strings.Split(v, ":")
	m := Mount{Type: "volume", Target: parts[0]}
	if len(parts) > 1 {
		m.Source, m.Target = parts[0], parts[1]
	}
	if rest, ok := strings.CutPrefix(m.Source, "~/"); ok {
		home, _ := os.UserHomeDir()
		m.Source = filepath.Join(home, rest)
	}
	if filepath.IsAbs(m.Source) {
		m.Type, m.CreateHostParent = "bind", true
	}
	switch {
	case len(parts) > 3, len(parts) > 1 && m.Source == "", !filepath.IsAbs(m.Target), filepath.Clean(m.Target) == "/":
		return m, errors.New("it must be SOURCE:TARGET or SOURCE:TARGET:ro, and the target an absolute path below the root")
	case m.Type == "volume" && strings.ContainsAny(m.Source, "/\\"):
		return m, errors.New("the source must be an absolute path or the name of a volume")
	}
	if len(parts) < 3 {
		return m, nil
	}
	for option := range strings.SplitSeq(parts[2], ",") {
		switch {
		case option == "ro":
			m.ReadOnly = true
		case option == "rw":
		case slices.Contains(options, option):
			m.Options = strings.TrimPrefix(m.Options+","+option, ",")
		default:
			return m, fmt.Errorf("%q is no option of a mount", option)
		}
	}
	return m, nil
}

// parseMount parses the value of --mount: type=bind,source=…,target=…[,readonly].
func parseMount(v string) (Mount, error) {
	m := Mount{Type: "volume"}
	var problem error
	for field := range strings.SplitSeq(v, ",") {
		key, value, has := strings.Cut(field, "=")
		switch key {
		case "type":
			m.Type = value
		case "source", "src":
			m.Source = value
		case "target", "destination", "dst":
			m.Target = value
		case "readonly", "ro":
			m.ReadOnly = !has || value == "true" || value == "1"
		default:
			problem = fmt.Errorf("its field %q is not known", key)
		}
	}
	switch {
	case problem != nil:
		return m, problem
	case m.Type != "bind" && m.Type != "volume" && m.Type != "tmpfs":
		return m, errors.New("its type must be bind, volume or tmpfs")
	case !filepath.IsAbs(m.Target), m.Type == "bind" && !filepath.IsAbs(m.Source):
		return m, errors.New("its target, and the source of a bind mount, must be absolute paths")
	}
	return m, nil
}

// The words of HINIT_SANDBOX_ALLOW. Each permits something that could give a sandbox power over the host. The sandbox service
// ignores this variable.
const (
	AllowPrivileged = "privileged" // Permits --privileged, devices, and more capabilities and security options than [Capabilities].
	AllowHost       = "host"       // Permits namespaces of the host or of another container.
	AllowSocket     = "socket"     // Permits a mount of an engine's socket, or of a directory that contains one.
)

// Capabilities are the only capabilities that a sandbox may have. It has all of them by default.
var Capabilities = []string{"DAC_OVERRIDE", "CHOWN", "FOWNER", "SETUID", "SETGID"}

// socketDirs are directories in which an engine may have its socket.
var socketDirs = []string{"/var/run", "/run", "/run/podman", "/run/containerd"}

// FindEscape searches the Spec for a setting that gives more rights than a sandbox may have, usually root on the host. It
// returns the first such setting that the words in permitted do not allow (what), and the word that would allow it (word).
// Without such a setting, both results are "". The service and the emulated docker command use the same check.
func (s *Spec) FindEscape(permitted ...string) (what, word string) {
	found := func(text, allow string) {
		if what == "" && !slices.Contains(permitted, allow) {
			what, word = text, allow
		}
	}
	if s.Privileged {
		found("--privileged", AllowPrivileged)
	}
	for _, d := range s.Devices {
		found("the device "+d, AllowPrivileged)
	}
	for _, c := range s.CapAdd {
		if !slices.Contains(Capabilities, strings.TrimPrefix(strings.ToUpper(c), "CAP_")) {
			found("the capability "+c, AllowPrivileged)
		}
	}
	for _, o := range s.SecurityOpt {
		if name, value, _ := strings.Cut(strings.Replace(o, ":", "=", 1), "="); name != "no-new-privileges" || value != "" && value != "true" {
			found("the security option "+o, AllowPrivileged)
		}
	}
	for _, mode := range []string{s.PIDMode, s.IPCMode, s.UTSMode, s.UserNS, s.CgroupNS, s.Network} {
		if mode == "host" || strings.HasPrefix(mode, "container:") || strings.HasPrefix(mode, "ns:") {
			found("a namespace of the host or of another container ("+mode+")", AllowHost)
		}
	}
	for _, m := range s.Mounts {
		if source := filepath.Clean(m.Source); source == "/" || slices.Contains(socketDirs, source) || filepath.IsAbs(source) && strings.HasSuffix(source, ".sock") {
			found("a mount of "+source, AllowSocket)
		}
	}
	return what, word
}
