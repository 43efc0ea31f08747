package config

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// ProcessSettings are settings that hinit applies to a process before it executes the command, and a few settings for operators.
// Zero settings change nothing.
type ProcessSettings struct {
	EnvFile    Paths                    `key:"env_file" is:"envfiles" fill:"."` // environment files; one with "-" in front may be missing
	Priority   Priority                 `key:",root"`
	Umask      string                   `key:"umask,root" is:"umask?"`      // umask in octal; "": hinit's own umask
	NoNewPrivs Switch                   `key:"no_new_privs,root"`           // whether the process is kept from gaining privileges, see [Config.NoNewPrivs]
	Limits     map[string]ResourceLimit `key:"limits,root" alias:"rlimits"` // resource limits by name, such as "nofile"
	Memory     Memory                   `key:"memory."`
	Operator   OperatorSettings         `key:""`
}

// NeedsCgroup reports whether a limit needs a control group for the service.
func (s *ProcessSettings) NeedsCgroup() bool {
	return s.Memory.High > 0 || s.Memory.Max > 0 || s.Priority.CPUWeight > 0 || s.Priority.MaxPIDs > 0
}

// AnySettings reports whether has returns true for the settings of any gateway or service.
func (c *Config) AnySettings(has func(*ProcessSettings) bool) bool {
	found := has(&c.Agent.ProcessSettings)
	for _, p := range c.Profiles.Overrides {
		found = found || has(&p.ProcessSettings)
	}
	for _, s := range c.Services {
		found = found || has(&s.ProcessSettings)
	}
	return found
}

// Priority says which share of the machine a service gets in comparison with other services.
type Priority struct {
	Nice   int    `key:"nice" is:"between -20 19"` // number that is added to the nice value of hinit
	IONice IONice `key:"ionice."`
	// number that is added to the oom_score_adj of hinit; 0: hinit's default
	OOMScore    int    `key:"oom_score" is:"between 0 1000"`
	CPUAffinity string `key:"cpu_affinity" is:"cpus?"` // list of processors such as 0-3,6; "": all that hinit may use
	// Class is one of the Priority constants. When memory runs out, hinit and the kernel end the services of lower classes first.
	Class     string `key:"priority" is:"oneof low normal high critical"`
	CPUWeight int    `key:"cpu.weight" is:"between 0 10000"` // share of the processors, where others have 100; 0: 100
	MaxPIDs   int    `key:"pids.max" is:"between 0 4194304"` // maximum number of processes and threads; 0: no limit
	Quota     Quota  `key:"quota."`                          // disk quota of the profile
}

// Quota limits the disk space of a profile; 0 means no limit. hinit measures the space every minute.
type Quota struct {
	WarnAbove Bytes `key:"warn"` // size of the profile's files above which hinit warns
	StopAbove Bytes `key:"stop"` // size of the profile's files above which its gateway doesn't run
}

// IsSet reports whether q has a limit.
func (q Quota) IsSet() bool { return q != Quota{} }

// The values of [Priority].Class. When memory runs out, hinit ends no critical service.
const (
	PriorityLow      = "low"
	PriorityNormal   = "normal"
	PriorityHigh     = "high"
	PriorityCritical = "critical"
)

// OperatorSettings say how operators name a service, and how it is asked to reload or end.
type OperatorSettings struct {
	Group        string   `key:"group" is:"group?"`                   // group to which the service belongs; @GROUP in commands
	ReloadSignal string   `key:"reload_signal" is:"signal?"`          // signal for reading the configuration again, such as HUP; "" for none
	StopCommand  []string `key:"stop_command" is:"command?" fill:"."` // command that asks the service to end before the stop signal; empty for no command
}

// IONice is the I/O class and priority of a process (ioprio_set(2)).
type IONice struct {
	Class string `key:"class" is:"oneof? best-effort idle realtime"` // I/O class: one of the IO constants; "": hinit's own class
	Level int    `key:"level" is:"between 0 7"`                      // priority within the class; 0 is served first, 7 last
}

// The values of [IONice].Class.
const (
	IORealtime   = "realtime"
	IOBestEffort = "best-effort"
	IOIdle       = "idle"
)

// Memory limits the memory of all processes of a service together. 0 means no limit. hinit measures it every few seconds. The
// kernel enforces High and Max if the service has a control group. Otherwise High is treated as WarnAbove, and Max as
// RestartAbove.
type Memory struct {
	WarnAbove    Bytes `key:"warn"`      // hinit warns above this size
	RestartAbove Bytes `key:"restart"`   // hinit restarts the service above this size
	High         Bytes `key:"high,root"` // the kernel slows the service down above this size
	Max          Bytes `key:"max,root"`  // the kernel kills one of the processes above this size
}

// IsSet reports whether m has any limit.
func (m Memory) IsSet() bool { return m != Memory{} }

// WithoutCgroup returns the limits that hinit itself enforces for a service without a control group: High counts as WarnAbove,
// and Max as RestartAbove.
func (m Memory) WithoutCgroup() Memory {
	return Memory{WarnAbove: smallerLimit(m.WarnAbove, m.High), RestartAbove: smallerLimit(m.RestartAbove, m.Max)}
}

// smallerLimit returns the smaller of two limits, where 0 means no limit.
func smallerLimit(a, b Bytes) Bytes {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// Switch is a setting that is on, off, or auto. With auto, hinit decides.
type Switch string

// The values of [Switch].
const (
	Auto Switch = "auto"
	On   Switch = "true"
	Off  Switch = "false"
)

// NoNewPrivs reports whether a process of the agent runs with no_new_privs, so that set-user-id programs give it no privileges.
// own is the setting of the process. If own is Auto, the agent's setting counts. If both are Auto, the result is true if a
// service runs as another user. That user could leave a set-user-id file, and the agent could become that user.
func (c *Config) NoNewPrivs(own Switch) bool {
	if own == Auto {
		own = c.Agent.NoNewPrivs
	}
	return own == On || own == Auto && c.ServiceWithOtherUser() != ""
}

// ServiceWithOtherUser returns the first service by name that runs as another user than the agent, or "". The sandbox and lease
// services count only if they are enabled.
func (c *Config) ServiceWithOtherUser() string {
	for _, name := range sortedKeys(c.Services) {
		if s := c.Services[name]; !c.servicesOnly && s.User != "" && s.User != c.Agent.User && (!alwaysRunsAsRoot(name) || s.Enabled) {
			return name
		}
	}
	return ""
}

// ResourceLimit is a limit of setrlimit(2).
type ResourceLimit struct{ Soft, Hard uint64 }

// Paths is a list of paths. In hinit.yaml, one path needs no list.
type Paths []string

// Bytes is a size in bytes.
type Bytes uint64

// Text returns the size in the form of hinit.yaml, such as "512MiB".
func (b Bytes) Text() string {
	n := uint64(b)
	for i := len(sizeSuffixes) - 1; i >= 0; i-- {
		if unit := uint64(1) << (10 * (i + 1)); n >= unit && n%unit == 0 {
			return fmt.Sprintf("%d%ciB", n/unit, sizeSuffixes[i])
		}
	}
	return strconv.FormatUint(n, 10)
}

func newProcessSettings() ProcessSettings {
	return ProcessSettings{NoNewPrivs: Auto, Priority: Priority{Class: PriorityNormal}, Limits: map[string]ResourceLimit{}, Operator: OperatorSettings{StopCommand: []string{}}}
}

// checkEnvFile returns why an entry of env_file is invalid, or "". A leading "-" is allowed.
func checkEnvFile(path string) string {
	if reason := checkDirTemplate(strings.TrimPrefix(path, "-")); reason != "" {
		return reason + "; begin with {home} for a file of the data directory"
	}
	return ""
}

// validateProcessSettings reports process settings that contradict each other.
func (l *loader) validateProcessSettings(s *ProcessSettings, prefix string) {
	report := func(key, reason string) {
		l.problems.reportAtOrigin(l.cfg.origins[prefix+key], "cannot set %s: %s", prefix+key, reason)
	}
	switch io := s.Priority.IONice; {
	case io.Class == "" && io.Level != 0:
		report("ionice.level", "it has no class; add ionice.class, one of "+strings.Join([]string{IOBestEffort, IOIdle, IORealtime}, ", "))
		return
	case io.Class == IOIdle && io.Level != 0:
		report("ionice.level", "the class idle has no levels; remove it, or set ionice.class to best-effort")
		return
	}
	for _, pair := range []struct {
		lower, upper string
		low, up      Bytes
	}{
		{"memory.warn", "memory.restart", s.Memory.WarnAbove, s.Memory.RestartAbove},
		{"memory.high", "memory.max", s.Memory.High, s.Memory.Max},
		{"memory.warn", "memory.max", s.Memory.WarnAbove, s.Memory.Max},
		{"memory.restart", "memory.max", s.Memory.RestartAbove, s.Memory.Max},
		{"memory.high", "memory.restart", s.Memory.High, s.Memory.RestartAbove},
		{"quota.warn", "quota.stop", s.Priority.Quota.WarnAbove, s.Priority.Quota.StopAbove},
	} {
		if pair.low > 0 && pair.up > 0 && pair.low >= pair.up {
			report(pair.lower, fmt.Sprintf("%s is not below %s (%s)", pair.low.Text(), pair.upper, pair.up.Text()))
			return
		}
	}
}

// minByteLimit is the smallest limit of memory or disk space that is accepted. A smaller number probably means megabytes.
const minByteLimit = 1 << 20

func (d *decoder) decodeBytes(n *yaml.Node, key string, at *Bytes) {
	size, ok := parseSize(n, 1024)
	if !ok && n.Kind == yaml.ScalarNode {
		number, err := strconv.ParseUint(n.Value, 0, 63)
		size, ok = number, err == nil
	}
	switch {
	case !ok:
		d.problems.reportAtLine(n.Line, "cannot set %s: expected a size such as 512MiB or 2GiB, got %s", key, describeNode(n))
	case size > 0 && size < minByteLimit:
		megabytes := ""
		if n.ShortTag() == "!!int" {
			megabytes = fmt.Sprintf(", or %dMiB if megabytes are meant", size)
		}
		d.problems.reportAtLine(n.Line, "cannot set %s: %s is too small for a limit; write at least 1MiB%s", key, describeNode(n), megabytes)
	default:
		*at = Bytes(size)
	}
}

func (d *decoder) decodeSwitch(n *yaml.Node, key string, at *Switch) {
	switch {
	case n.Kind == yaml.ScalarNode && n.ShortTag() == "!!bool":
		*at = Switch(strings.ToLower(n.Value))
	case n.Kind == yaml.ScalarNode && n.Value == string(Auto):
		*at = Auto
	default:
		d.problems.reportAtLine(n.Line, "cannot set %s: expected true, false or auto, got %s", key, describeNode(n))
	}
}

func (d *decoder) decodePaths(n *yaml.Node, key string, at *Paths) {
	if n.Kind != yaml.SequenceNode {
		if text, ok := d.decodeText(n, key, "path"); ok {
			*at = Paths{text}
		}
		return
	}
	*at = d.decodeWords(n, key)
}

// decodeLimits adds the resource limits in the mapping n to limits.
func (d *decoder) decodeLimits(n *yaml.Node, key string, limits map[string]ResourceLimit) map[string]ResourceLimit {
	own := key
	if prefix, is := strings.CutSuffix(key, "rlimits"); is {
		own = prefix + "limits"
	}
	for _, e := range d.entries(n, key+".", limitNames) {
		if !slices.Contains(limitNames, e.key) {
			d.reportUnknownKey(e.line, key+".", e.key, limitNames, nil)
			continue
		}
		if first, twice := d.origins[own+"."+e.key]; twice && own != key {
			d.problems.reportAtLine(e.line, "cannot set %s.%s: it is already set on line %d", key, e.key, first.line)
			continue
		}
		if limit, ok := d.decodeLimit(e.value, e.key, key+"."+e.key); ok {
			limits[e.key] = limit
			d.origins[own+"."+e.key] = origin{file: d.problems.file, line: e.line}
		}
	}
	return limits
}

// decodeLimit decodes one value for both limits, or SOFT:HARD.
func (d *decoder) decodeLimit(n *yaml.Node, name, key string) (limit ResourceLimit, ok bool) {
	soft, hard, both := strings.Cut(n.Value, ":")
	if !both {
		limit.Soft, ok = d.decodeLimitNumber(n, name, key)
		return ResourceLimit{limit.Soft, limit.Soft}, ok
	}
	part := func(text string) (uint64, bool) {
		return d.decodeLimitNumber(&yaml.Node{Kind: yaml.ScalarNode, Value: strings.TrimSpace(text), Line: n.Line}, name, key)
	}
	if limit.Soft, ok = part(soft); ok {
		limit.Hard, ok = part(hard)
	}
	if ok && limit.Soft > limit.Hard {
		d.problems.reportAtLine(n.Line, "cannot set %s: the soft limit %s is above the hard limit %s; write \"%s:%s\"", key, soft, hard, hard, soft)
		return limit, false
	}
	return limit, ok
}

func (d *decoder) decodeLimitNumber(n *yaml.Node, name, key string) (uint64, bool) {
	isBytes := slices.Contains(byteLimits, name)
	size, isSize := parseSize(n, 1024)
	number, err := strconv.ParseUint(n.Value, 0, 63)
	expected := "a number or unlimited"
	switch {
	case isTextNode(n) && n.Value == "unlimited":
		return Unlimited, true
	case n.Kind == yaml.ScalarNode && n.ShortTag() == "!!int":
		if err == nil {
			return number, true
		}
		expected = fmt.Sprintf("a number from 0 to %d or unlimited", int64(math.MaxInt64))
	case isSize && isBytes:
		return size, true
	case isSize:
		decimal, _ := parseSize(n, 1000)
		d.problems.reportAtLine(n.Line, "cannot set %s: expected %s, got %s; it is no size in bytes, write %d or %d", key, expected, describeNode(n), size, decimal)
		return 0, false
	case isBytes:
		expected = "a number, a size such as 512M or 2G, or unlimited"
	}
	d.problems.reportAtLine(n.Line, "cannot set %s: expected %s, got %s", key, expected, describeNode(n))
	return 0, false
}

// byteLimits lists the resource limits that count bytes.
var byteLimits = []string{"as", "core", "data", "fsize", "memlock", "msgqueue", "rss", "stack"}
