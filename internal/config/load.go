package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"

	"hinit/internal/trust"
	"hinit/internal/yamltext"
)

// maxFileSize is the largest configuration file in bytes, which limits the memory of PID 1. A usual file has a few kilobytes.
const maxFileSize = 1 << 20

// Options say where [Load] finds the configuration, and for which kind of supervisor.
type Options struct {
	// Path is the file to read. If it is "", Load reads the file that HINIT_CONFIG names, or else [DefaultPath], which may be
	// missing.
	Path string
	// Content, if not nil, replaces the content of the file. After a re-execution it is the content that the old program has read
	// and checked, so that no user can change it in between.
	Content []byte
	// Current is the present configuration if an agent asks for a reload, otherwise nil. If only root can change the file, the
	// file must still have the content of Current, because an agent must not apply root's changes before root does.
	Current *Config
	// ServicesOnly selects the configuration of hinit run: a supervisor without agent, profiles, built-in services and hooks.
	// Load then ignores the variables of the Hermes image.
	ServicesOnly bool
	// ImageDir is the directory with facts about the image; "" means the constant [ImageDir].
	ImageDir string
	// Env looks up an environment variable; nil means [os.LookupEnv].
	Env func(name string) (string, bool)
}

// Load reads the configuration: built-in defaults, then the file, then the environment.
//
// The error joins one [Problem] for each mistake, a line each, in a stable order. If a file is named and can't be read, the error
// wraps the reason. For root, some keys are valid only in a file that root alone can change. Load may block on the disk.
func Load(opt Options) (*Config, error) {
	if opt.Env == nil {
		opt.Env = os.LookupEnv
	}
	l := &loader{cfg: Defaults(), Options: opt}
	if opt.ServicesOnly {
		l.cfg = servicesOnlyDefaults()
	} else {
		l.cfg.Image = readImage(cmp.Or(opt.ImageDir, ImageDir))
	}
	data := opt.Content
	l.cfg.Path, l.problems.file = opt.Path, opt.Path
	if data == nil {
		var err error
		if data, err = l.readConfigFile(opt.Path); err != nil {
			return nil, err
		}
	}
	l.cfg.Content = data
	return l.buildConfig(data)
}

// loader is the state of one call of [Load].
type loader struct {
	Options

	cfg          *Config
	problems     problems
	changeableBy *trust.Violation // which other user can change the file; nil if only root can
	serviceNames []string         // names of all services, sorted; checkReferences sets it
}

// lookupVariable returns an environment variable. An empty one counts as unset.
func (l *loader) lookupVariable(name string) (string, bool) {
	v, ok := l.Env(name)
	return v, ok && v != ""
}

// readConfigFile returns the content of the configuration file, or nil if the default file is missing.
func (l *loader) readConfigFile(path string) ([]byte, error) {
	named := ""
	if path == "" {
		if p, ok := l.lookupVariable("HINIT_CONFIG"); ok {
			path, named = p, " (named by HINIT_CONFIG)"
		}
	}
	optional := path == ""
	path = cmp.Or(path, DefaultPath)
	data, violation, err := ReadFile(path)
	if err != nil {
		if optional && errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, fmt.Errorf("cannot read configuration %q%s: %w", path, named, err)
	}
	if violation != nil && l.ServicesOnly { // hinit run has no agent's user, so its commands run as root, and no other user may choose them
		return nil, fmt.Errorf("cannot use configuration %q: others than root can change it: %s", path, violation)
	}
	if violation == nil && l.Current != nil && !bytes.Equal(data, l.Current.Content) {
		return nil, fmt.Errorf("cannot read configuration %q: root has changed it, and it may be incomplete; root must reload it: hinit reload", path)
	}
	l.cfg.Path, l.problems.file, l.changeableBy = path, path, violation
	if violation != nil {
		l.warn("others than root can change %s, so it may not set what is root's to decide: %s, or keep the file where only root can write", path, violation)
	}
	return data, nil
}

// buildConfig makes the configuration from the text of the file.
func (l *loader) buildConfig(data []byte) (*Config, error) {
	doc, faults := yamltext.Parse(data)
	if data != nil && l.Content == nil && len(faults) == 0 && (doc == nil || doc.Tag == "!!null") {
		faults = []yamltext.Fault{{Message: "it has no key, as after a copy to a full disk; write {} for the defaults"}}
	}
	for _, f := range faults {
		l.problems.reportAtLine(f.Line, "%s", f.Message)
	}
	l.decodeDocument(doc)
	if err := l.problems.err(); err != nil {
		return nil, err
	}
	return l.cfg, nil
}

// ReadFile reads a regular file of limited size. It refuses other kinds of files, because opening one could block for ever.
// violation names a user other than root who can change the content, now or before the next read; nil means none. For root, a
// file that such a user may have chosen by a link is an error.
func ReadFile(path string) ([]byte, *trust.Violation, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, nil, err
	}
	var judge trust.Rule
	if os.Geteuid() == 0 { // only root must distrust files of other users
		judge = trust.RootOnly
	}
	fd, violation, err := trust.Open(path, judge)
	if err != nil {
		return nil, nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	if violation != nil {
		if err := checkQuotable(f, violation); err != nil {
			return nil, nil, err
		}
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err != nil {
		return nil, nil, WithoutPath(err)
	}
	if len(data) > maxFileSize {
		return nil, nil, fmt.Errorf("larger than %d bytes; a configuration is a few kilobytes, so is it the right file?", maxFileSize)
	}
	return data, violation, nil
}

// checkQuotable returns an error if messages must not quote the content of f. violation says how a user other than root can
// replace the file. Such a user could make f a link to a file that only root may read, and learn its content from the messages.
func checkQuotable(f *os.File, violation *trust.Violation) error {
	info, err := f.Stat()
	if err != nil {
		return WithoutPath(err)
	}
	st := info.Sys().(*syscall.Stat_t)
	switch {
	case violation.Link:
		return fmt.Errorf("a link leads to it that others than root can have made: %s; put the file there itself", violation)
	case st.Uid == 0 && st.Mode&0o004 == 0 && (st.Gid == 0 || st.Mode&0o040 == 0):
		return fmt.Errorf("it is root's and closed to others, who can put another file there: %s; or chmod o+r %s", violation, f.Name())
	}
	return nil
}

// WithoutPath removes the path from an error, for messages that name the path already.
func WithoutPath(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}

func (l *loader) warn(format string, args ...any) {
	l.cfg.Warnings = append(l.cfg.Warnings, fmt.Sprintf(format, args...))
}

// decodeDocument decodes the whole document into the configuration, and computes values that depend on several keys. doc is nil
// without a file.
func (l *loader) decodeDocument(doc *yaml.Node) {
	c := l.cfg
	d := &decoder{&l.problems, c.origins, l.changeableBy, l.ServicesOnly}
	fields := Keys[Config]()
	var services, runs, profileLogs *yaml.Node
	var own []keyEntry
	if doc != nil {
		d.decodeMapping(doc, "", "", fields, c, map[string]func(*yaml.Node){
			"services":      func(n *yaml.Node) { services = n },
			"runs":          func(n *yaml.Node) { runs = n },
			"profiles":      func(n *yaml.Node) { own = l.decodeProfiles(d, n, fields) },
			"logs.profiles": func(n *yaml.Node) { profileLogs = n },
		})
	}
	l.applyEnv(fields)
	c.Home = filepath.Clean(c.Home)
	l.validateRestart(&c.Restart, "")
	l.validateProcessSettings(&c.Agent.ProcessSettings, "agent.")
	c.Logs.Dir = filepath.Clean(c.ExpandString(c.Logs.Dir, nil))
	l.decodeServices(d, services) // decode services first, because the exit codes of applyImage apply to gateways only
	l.applyImage()
	for i := range c.Boot.Hooks {
		h := &c.Boot.Hooks[i]
		h.User = cmp.Or(h.User, c.Agent.User)
		h.Command = c.Expand(h.Command, nil)
		h.IfExists = c.ExpandString(h.IfExists, nil)
		h.Inputs = c.Expand(h.Inputs, nil)
		if key := fmt.Sprintf("boot.hooks.%d.inputs", i); len(h.Inputs) > 0 && h.User != c.Agent.User {
			l.problems.reportAtOrigin(c.origins[key], "cannot set %s: only a hook that runs as the agent's user can be skipped, because the agent can write the record of its inputs; "+
				"leave out the inputs, or user %q", key, h.User)
		}
	}
	l.decodeProfileLogs(d, profileLogs)
	l.decodeProfileSettings(d, own)
	if _, written := c.Services[ActionsName]; !written && c.hasActions() {
		l.decodeService(d, ActionsName, keyEntry{})
	}
	l.checkReferences()
	l.validateIsolation()
	l.decodeRuns(d, runs)
	if l.ServicesOnly {
		l.reportAgentKeys()
	}
}

// decodeProfileLogs sets the log limits of single profiles. The default limits must be final, because the profiles inherit
// them.
func (l *loader) decodeProfileLogs(d *decoder, n *yaml.Node) {
	entries := d.namedEntries(n, "logs.profiles.", "%q as the name of a profile", checkProfileName)
	for _, name := range sortedKeys(entries) {
		limits := l.cfg.Logs.LogLimits
		d.decodeMapping(entries[name].value, "logs.profiles."+name+".", "", Keys[LogLimits](), &limits, nil)
		l.cfg.Logs.Profiles[name] = limits
	}
}

// applyEnv sets keys from their environment variables, which win over the file.
func (l *loader) applyEnv(fields []Key) {
	for _, k := range fields {
		value, set := l.lookupVariable(k.Env)
		if k.Env == "" || !set || l.ServicesOnly && strings.HasPrefix(k.Env, "HERMES_") {
			continue
		}
		reason, at := "", k.ValuePointer(l.cfg)
		switch at := at.(type) {
		case *string:
			*at = value
			if k.Env == runtimeDirVar {
				*at, reason = socketInDir(value)
			}
			if reason == "" && strings.Contains(*at, "\x00") {
				reason = "it contains a NUL byte"
			}
		case *time.Duration:
			*at, reason = parseSecondsOrDuration(value)
		case *bool:
			*at, reason = parseSwitch(value)
		}
		if reason == "" && k.check != nil {
			reason = k.check(at)
		}
		if reason != "" {
			l.problems.reportVariable(k.Env, value, reason)
			continue
		}
		l.cfg.origins[k.Path] = origin{env: k.Env}
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// servicesOnlyDefaults returns the defaults of hinit run, whose home is the working directory.
func servicesOnlyDefaults() *Config {
	c := Defaults()
	c.servicesOnly, c.Home = true, "/"
	if wd, err := os.Getwd(); err == nil {
		c.Home = wd
	}
	c.Agent = Agent{Cwd: "{home}", ReadyWhen: ReadyWhenUp, SettleTime: c.Agent.SettleTime, Env: map[string]string{}, ProcessSettings: newProcessSettings()}
	c.Restart.ParkCodes, c.Restart.ImmediateCodes = []int{}, []int{} // these codes have a meaning only for the agent
	c.Logs.Dir = "{home}/logs"
	c.Boot.Hooks = nil
	return c
}

// reportAgentKeys reports keys that hinit run doesn't accept, because it hosts no agent.
func (l *loader) reportAgentKeys() {
	for _, key := range sortedKeys(l.cfg.origins) {
		for _, prefix := range []string{"agent.", "profiles.", "logs.profiles.", "isolation."} {
			if strings.HasPrefix(key, prefix) {
				l.problems.reportAtOrigin(l.cfg.origins[key], "cannot set %s: hinit run hosts no agent; remove the key, or use hinit init", key)
			}
		}
	}
}

// ReadTrustedFile returns the content of the configuration file that the environment env selects. It returns nil for a missing,
// unreadable or too large file, and for a file that others than root can change.
func ReadTrustedFile(env func(string) (string, bool)) []byte {
	l := &loader{cfg: new(Config), Options: Options{Env: env}}
	text, err := l.readConfigFile("")
	if err != nil || l.changeableBy != nil || yamltext.LineOfTooManyValues(text) > 0 {
		return nil
	}
	return text
}
