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
// A flag that it doesn't know is an error, and changes nothing. -e NAME takes the value of this process.
func (s *Spec) ApplyFlags(args []string) (rest []string, err error) {
	flags, rest, err := dockerflags.Container.Split(args)
	if err != nil {
		return nil, fmt.Errorf("cannot use the flags of docker run: %w", err)
	}
	next := s.clone()
	for _, f := range flags {
		set, known := containerFlags[f.Name]
		if !known {
			return nil, fmt.Errorf("cannot use --%s: it is no flag of docker run that a sandbox knows", f.Name)
		}
		if err := set(next, f.Value); err != nil {
			return nil, fmt.Errorf("cannot use --%s=%s: %w", f.Name, f.Value, err)
		}
	}
	*s = *next
	return rest, nil
}

// FlagNames are the long names of the flags that [Spec.ApplyFlags] knows, sorted.
func FlagNames() []string {
	return slices.Sorted(maps.Keys(containerFlags))
}

// clone copies a Spec so far that setting a flag does not change the original.
func (s *Spec) clone() *Spec {
	c := *s
	c.Labels, c.Storage, c.Ulimits = map[string]string{}, map[string]string{}, map[string]string{}
	for _, m := range []struct{ to, from map[string]string }{{c.Labels, s.Labels}, {c.Storage, s.Storage}, {c.Ulimits, s.Ulimits}} {
		maps.Copy(m.to, m.from)
	}
	for _, list := range []*[]string{&c.Env, &c.CapDrop, &c.CapAdd, &c.SecurityOpt, &c.Devices, &c.Groups, &c.DNS, &c.Hosts, &c.Ports} {
		*list = slices.Clone(*list)
	}
	c.Mounts = slices.Clone(s.Mounts)
	return &c
}

// containerFlags are the flags of docker run by their long names.
var containerFlags = map[string]func(*Spec, string) error{
	"name":         text(func(s *Spec) *string { return &s.Name }),
	"user":         text(func(s *Spec) *string { return &s.User }),
	"workdir":      text(func(s *Spec) *string { return &s.Dir }),
	"hostname":     text(func(s *Spec) *string { return &s.Hostname }),
	"network":      text(func(s *Spec) *string { return &s.Network }),
	"net":          text(func(s *Spec) *string { return &s.Network }),
	"pid":          text(func(s *Spec) *string { return &s.PIDMode }),
	"ipc":          text(func(s *Spec) *string { return &s.IPCMode }),
	"uts":          text(func(s *Spec) *string { return &s.UTSMode }),
	"userns":       text(func(s *Spec) *string { return &s.UserNS }),
	"cgroupns":     text(func(s *Spec) *string { return &s.CgroupNS }),
	"runtime":      text(func(s *Spec) *string { return &s.Runtime }),
	"restart":      text(func(s *Spec) *string { return &s.Restart }),
	"init":         truth(func(s *Spec) *bool { return &s.Init }),
	"privileged":   truth(func(s *Spec) *bool { return &s.Privileged }),
	"read-only":    truth(func(s *Spec) *bool { return &s.ReadOnly }),
	"cap-drop":     list(func(s *Spec) *[]string { return &s.CapDrop }),
	"cap-add":      list(func(s *Spec) *[]string { return &s.CapAdd }),
	"security-opt": list(func(s *Spec) *[]string { return &s.SecurityOpt }),
	"device":       list(func(s *Spec) *[]string { return &s.Devices }),
	"group-add":    list(func(s *Spec) *[]string { return &s.Groups }),
	"dns":          list(func(s *Spec) *[]string { return &s.DNS }),
	"add-host":     list(func(s *Spec) *[]string { return &s.Hosts }),
	"publish":      list(func(s *Spec) *[]string { return &s.Ports }),
	"memory":       size(func(s *Spec) *int64 { return &s.Memory }),
	"shm-size":     size(func(s *Spec) *int64 { return &s.ShmSize }),
	"label":        pair(func(s *Spec) map[string]string { return s.Labels }),
	"storage-opt":  pair(func(s *Spec) map[string]string { return s.Storage }),
	"ulimit":       pair(func(s *Spec) map[string]string { return s.Ulimits }),
	"pids-limit": func(s *Spec, v string) (err error) {
		s.PidsLimit, err = strconv.ParseInt(v, 10, 64)
		return plainNumber(err)
	},
	"cpus": func(s *Spec, v string) (err error) {
		if s.CPUs, err = strconv.ParseFloat(v, 64); math.IsNaN(s.CPUs) || math.IsInf(s.CPUs, 0) {
			err = strconv.ErrRange
		}
		return plainNumber(err)
	},
	"env": func(s *Spec, v string) error {
		if !strings.Contains(v, "=") {
			value, set := os.LookupEnv(v)
			if !set {
				return nil
			}
			v += "=" + value
		}
		s.Env = append(s.Env, v)
		return nil
	},
	"entrypoint": func(s *Spec, v string) error {
		s.Entrypoint = []string{v}
		return nil
	},
	"tmpfs": func(s *Spec, v string) error {
		target, options, _ := strings.Cut(v, ":")
		if !filepath.IsAbs(target) {
			return errors.New("the path must be absolute")
		}
		s.Mounts = append(s.Mounts, Mount{Type: "tmpfs", Target: target, Options: options})
		return nil
	},
	"volume": func(s *Spec, v string) error {
		m, err := parseVolume(v)
		s.Mounts = append(s.Mounts, m)
		return err
	},
	"mount": func(s *Spec, v string) error {
		m, err := mount(v)
		s.Mounts = append(s.Mounts, m)
		return err
	},
}

func text(field func(*Spec) *string) func(*Spec, string) error {
	return func(s *Spec, v string) error {
		*field(s) = v
		return nil
	}
}

func truth(field func(*Spec) *bool) func(*Spec, string) error {
	return func(s *Spec, v string) error {
		on, err := strconv.ParseBool(v)
		if err != nil {
			return errors.New("it must be true or false")
		}
		*field(s) = on
		return nil
	}
}

func list(field func(*Spec) *[]string) func(*Spec, string) error {
	return func(s *Spec, v string) error {
		*field(s) = append(*field(s), v)
		return nil
	}
}

func pair(field func(*Spec) map[string]string) func(*Spec, string) error {
	return func(s *Spec, v string) error {
		name, value, _ := strings.Cut(v, "=")
		if name == "" {
			return errors.New("it must be NAME=VALUE")
		}
		field(s)[name] = value
		return nil
	}
}

func plainNumber(err error) error {
	if err != nil {
		return errors.New("it must be a number")
	}
	return nil
}

// size reads bytes as docker does: 512m, 1g, 10485760b.
func size(field func(*Spec) *int64) func(*Spec, string) error {
	return func(s *Spec, v string) error {
		n, err := bytesOf(v)
		if err != nil || n < 0 {
			return errors.New("it must be a size such as 512m")
		}
		*field(s) = n
		return nil
	}
}

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

// mount reads what --mount takes: type=bind,source=…,target=…[,readonly].
func mount(v string) (Mount, error) {
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
