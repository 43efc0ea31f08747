package sandbox

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"hinit/sandbox/dockerflags"
)

// ApplyFlags reads flags of docker run into the Spec, up to the first argument that is none, and returns the rest: image and command.
// -e NAME takes the value of this process. Do not use the Spec after an error.
func (s *Spec) ApplyFlags(args []string) (rest []string, err error) {
	flags, rest, err := dockerflags.Container.Split(args)
	if err != nil {
		return nil, fmt.Errorf("cannot use the flags of docker run: %w", err)
	}
	return rest, s.Set(flags)
}

// Set is [Spec.ApplyFlags] of flags that were read already. A flag that it doesn't know is an error.
func (s *Spec) Set(flags []dockerflags.Flag) error {
	for _, f := range flags {
		field, known := containerFlags[f.Name]
		if !known {
			return fmt.Errorf("cannot use --%s: it is no flag of docker run that a sandbox knows", f.Name)
		}
		if err := setField(field(s), f.Value); err != nil {
			return fmt.Errorf("cannot use --%s=%s: %w", f.Name, f.Value, err)
		}
	}
	return nil
}

// FlagNames are the long names of the flags that [Spec.ApplyFlags] knows, sorted.
func FlagNames() []string {
	return slices.Sorted(maps.Keys(containerFlags))
}

// byteSize is a number of bytes as docker reads it: 512m, 1g, 10485760b.
type byteSize int64

// containerFlags are the flags of docker run by their long names, each with the field that it sets, or the function that does.
var containerFlags = map[string]func(*Spec) any{
	"name":         func(s *Spec) any { return &s.Name },
	"user":         func(s *Spec) any { return &s.User },
	"workdir":      func(s *Spec) any { return &s.Dir },
	"hostname":     func(s *Spec) any { return &s.Hostname },
	"network":      func(s *Spec) any { return &s.Network },
	"net":          func(s *Spec) any { return &s.Network },
	"pid":          func(s *Spec) any { return &s.PIDMode },
	"ipc":          func(s *Spec) any { return &s.IPCMode },
	"uts":          func(s *Spec) any { return &s.UTSMode },
	"userns":       func(s *Spec) any { return &s.UserNS },
	"cgroupns":     func(s *Spec) any { return &s.CgroupNS },
	"runtime":      func(s *Spec) any { return &s.Runtime },
	"restart":      func(s *Spec) any { return &s.Restart },
	"init":         func(s *Spec) any { return &s.Init },
	"privileged":   func(s *Spec) any { return &s.Privileged },
	"read-only":    func(s *Spec) any { return &s.ReadOnly },
	"cap-drop":     func(s *Spec) any { return &s.CapDrop },
	"cap-add":      func(s *Spec) any { return &s.CapAdd },
	"security-opt": func(s *Spec) any { return &s.SecurityOpt },
	"device":       func(s *Spec) any { return &s.Devices },
	"group-add":    func(s *Spec) any { return &s.Groups },
	"dns":          func(s *Spec) any { return &s.DNS },
	"add-host":     func(s *Spec) any { return &s.Hosts },
	"publish":      func(s *Spec) any { return &s.Ports },
	"memory":       func(s *Spec) any { return (*byteSize)(&s.Memory) },
	"shm-size":     func(s *Spec) any { return (*byteSize)(&s.ShmSize) },
	"pids-limit":   func(s *Spec) any { return &s.PidsLimit },
	"cpus":         func(s *Spec) any { return &s.CPUs },
	"label":        func(s *Spec) any { return &s.Labels },
	"storage-opt":  func(s *Spec) any { return &s.Storage },
	"ulimit":       func(s *Spec) any { return &s.Ulimits },
	"env":          func(s *Spec) any { return s.setEnv },
	"entrypoint":   func(s *Spec) any { return s.setEntrypoint },
	"tmpfs":        func(s *Spec) any { return s.mounts(parseTmpfs) },
	"volume":       func(s *Spec) any { return s.mounts(parseAgentVolume) },
	"mount":        func(s *Spec) any { return s.mounts(parseMount) },
}

// setField sets a field as one flag does.
func setField(field any, v string) (err error) {
	switch f := field.(type) {
	case *string:
		*f = v
	case *[]string:
		*f = append(*f, v)
	case *bool:
		if *f, err = strconv.ParseBool(v); err != nil {
			return errors.New("it must be true or false")
		}
	case *int64:
		if *f, err = strconv.ParseInt(v, 10, 64); err != nil {
			return errors.New("it must be a number")
		}
	case *float64:
		if *f, err = strconv.ParseFloat(v, 64); err != nil || math.IsNaN(*f) || math.IsInf(*f, 0) {
			return errors.New("it must be a number")
		}
	case *byteSize:
		n, err := bytesOf(v)
		if err != nil || n < 0 {
			return errors.New("it must be a size such as 512m")
		}
		*f = byteSize(n)
	case *map[string]string:
		name, value, _ := strings.Cut(v, "=")
		if name == "" {
			return errors.New("it must be NAME=VALUE")
		}
		if *f == nil {
			*f = make(map[string]string)
		}
		(*f)[name] = value
	case func(string) error:
		return f(v)
	}
	return nil
}

func (s *Spec) setEnv(v string) error {
	if !strings.Contains(v, "=") {
		value, set := os.LookupEnv(v)
		if !set {
			return nil
		}
		v += "=" + value
	}
	s.Env = append(s.Env, v)
	return nil
}

func (s *Spec) setEntrypoint(v string) error {
	s.Entrypoint = []string{v}
	return nil
}

// mounts adds a mount that is written in one of docker's ways. One that is wrong in part is added too: see [FlagLeadsOut].
func (s *Spec) mounts(parse func(string) (Mount, error)) func(string) error {
	return func(v string) error {
		m, err := parse(v)
		s.Mounts = append(s.Mounts, m)
		return err
	}
}

// parseTmpfs reads what --tmpfs takes: target[:options].
func parseTmpfs(v string) (m Mount, err error) {
	m.Type = "tmpfs"
	if m.Target, m.Options, _ = strings.Cut(v, ":"); !filepath.IsAbs(m.Target) {
		err = errors.New("the path must be absolute")
	}
	return m, err
}

func parseAgentVolume(v string) (Mount, error) { return parseVolume(v) }

// mountOptions are the options of the operator's volumes. An agent's has none: with rshared a mount inside would show outside.
var mountOptions = strings.Fields("z Z cached delegated consistent nocopy rprivate private rshared shared rslave slave")

// parseVolume reads what -v takes: [source:]target[:option,...], the source a path or the name of a volume. A "~/" is this user's home. Options
// are ro, rw and those that are given.
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

// parseMount reads what --mount takes: type=bind,source=…,target=…[,readonly].
func parseMount(v string) (Mount, error) {
	m := Mount{Type: "volume"}
	var wrong error
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
			wrong = fmt.Errorf("its field %q is not known", key)
		}
	}
	switch {
	case wrong != nil:
		return m, wrong
	case m.Type != "bind" && m.Type != "volume" && m.Type != "tmpfs":
		return m, errors.New("its type must be bind, volume or tmpfs")
	case !filepath.IsAbs(m.Target):
		return m, errors.New("its target must be an absolute path")
	case m.Type == "bind" && !filepath.IsAbs(m.Source):
		return m, errors.New("its source must be an absolute path")
	}
	return m, nil
}

// The words of HINIT_SANDBOX_ALLOW, which counts without the service only.
const (
	AllowPrivileged = "privileged" // --privileged, devices, capabilities and security options beyond a sandbox's own
	AllowHost       = "host"       // namespaces of the host or of another container, and its cgroups
	AllowSocket     = "socket"     // a mount of an engine's socket or of a directory that holds it
)

// Capabilities are all that a sandbox may have (contract, section 5.1).
var Capabilities = []string{"DAC_OVERRIDE", "CHOWN", "FOWNER", "SETUID", "SETGID"}

// socketDirs are where engines have their sockets.
var socketDirs = []string{"/var/run", "/run", "/run/podman", "/run/containerd"}

// LeadsOut says what of a Spec gives more than a sandbox, mostly root on the host, and which word permits it. It is "" where there is nothing
// that the words given don't permit. It is the one list of such things, for the service and for the docker personality.
func (s *Spec) LeadsOut(permitted ...string) (what, word string) {
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
		source := filepath.Clean(m.Source)
		if source == "/" || slices.Contains(socketDirs, source) || filepath.IsAbs(source) && strings.HasSuffix(source, ".sock") {
			found("a mount of "+source, AllowSocket)
		}
	}
	return what, word
}

// unsaid are the flags that no Spec has, and that lead out of a sandbox all the same, with the word that permits each.
var unsaid = map[string]string{
	"device-cgroup-rule": AllowPrivileged, "gpus": AllowPrivileged, "cgroup-parent": AllowHost, "volumes-from": AllowHost, "oom-score-adj": AllowHost,
	"use-api-socket": AllowSocket,
}

// FlagLeadsOut is [Spec.LeadsOut] of one flag of docker run, by its long name, whether a Spec has it or not.
func FlagLeadsOut(name, value string, permitted ...string) (what, word string) {
	if word, is := unsaid[name]; is {
		if slices.Contains(permitted, word) {
			return "", ""
		}
		return "--" + name + "=" + value, word
	}
	if name == "label" && strings.HasPrefix(value, "hinit-") {
		return "the label " + value, ""
	}
	s := new(Spec)
	_ = s.Set([]dockerflags.Flag{{Name: name, Value: value}}) // one that is wrong in part is looked at too
	return s.LeadsOut(permitted...)
}
