package config

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"hinit/internal/cpulist"
	"hinit/internal/cronspec"
)

// field is one key of the configuration below a root, which is a struct. The tags of the struct's fields have everything about the
// key but its description, which is in the reference (internal/gendocs):
//
//   - key: the path from the enclosing struct on, and options. A path that ends in a dot, or is empty, belongs to a struct with further
//     keys. The option "root" says that the key decides which user runs a program, where root works, or how large PID 1 gets. It counts
//     only in a file that root alone can change. The option "short" says that a text in the place of the key's mapping sets this key.
//   - is: the valid values, see kindOf.
//   - env: the environment variable that wins over the file.
//   - inherits: the key whose value this one has while it is not set.
//   - fill: the placeholders that its text may have, see holes. On a struct it is for the fields with fill ".".
//   - without: a key of an embedded struct that is left out.
type field struct {
	path     string // dotted, below the root
	is       kind
	env      string
	inherits string
	alias    string   // path of the key of which this one is another spelling
	holes    []string // nil: no template
	root     bool
	short    bool
	index    []int  // place of the value in the root
	without  string // of a struct
}

// at returns the pointer to the value in a root, given the pointer to the root.
func (f *field) at(root any) any {
	return reflect.ValueOf(root).Elem().FieldByIndex(f.index).Addr().Interface()
}

// The schemas of all mappings of hinit.yaml.
func configFields() []field  { return schema[Config]("", "agent.rlimits", "agent.limits") }
func profileFields() []field { return schema[Profile]("", "rlimits", "limits") } // of profiles.NAME
func serviceFields() []field { // of services.NAME
	return schema[Service]("", "rlimits", "limits", "park_on", "restart.park_on", "immediate_on", "restart.immediate_on", "success_codes", "restart.success_codes")
}
func runFields() []field    { return schema[Run]("") }            // of runs.NAME
func hookFields() []field   { return schema[Hook]("") }           // of an entry of boot.hooks
func needFields() []field   { return schema[Need]("") }           // of an entry of needs
func checkKeys() []field    { return schema[Check]("") }          // of an entry of checks
func actionFields() []field { return schema[Action]("") }         // of an action
func logFields() []field    { return schema[LogLimits]("logs.") } // of logs.profiles.NAME

// schemas has the schemas that were needed so far: reflect.Type of the root → []field. They are made late because every command
// waits for the initialisation of this package.
var schemas sync.Map

// schema returns the schema of the root T. A key below it inherits from the key of the same name below inherits, "" for none.
// aliases are pairs of a further spelling and the key that it means.
func schema[T any](inherits string, aliases ...string) []field {
	root := reflect.TypeFor[T]()
	if made, ok := schemas.Load(root); ok {
		return made.([]field)
	}
	fields := appendFields(nil, root, &field{inherits: inherits})
	for pair := range slices.Chunk(aliases, 2) {
		i := slices.IndexFunc(fields, func(f field) bool { return f.path == pair[1] })
		f := fields[i]
		f.path, f.alias, f.inherits = pair[0], pair[1], ""
		fields = slices.Insert(fields, i+1, f)
	}
	schemas.Store(root, fields)
	return fields
}

// appendFields appends the keys of a struct, which is in another one.
func appendFields(fields []field, of reflect.Type, in *field) []field {
	for i := range of.NumField() {
		tag := of.Field(i).Tag
		words, isKey := tag.Lookup("key")
		name, options, _ := strings.Cut(words, ",")
		if !isKey || name != "" && name == in.without {
			continue
		}
		f := field{
			path: in.path + name, env: tag.Get("env"), inherits: tag.Get("inherits"), without: cmp.Or(tag.Get("without"), in.without),
			root: in.root || strings.Contains(options, "root"), short: strings.Contains(options, "short"), index: append(slices.Clone(in.index), i),
		}
		if f.inherits == "" && in.inherits != "" {
			f.inherits = in.inherits + name
		}
		fill, isStruct := tag.Get("fill"), of.Field(i).Type.Kind() == reflect.Struct
		if f.holes = holes[fill]; fill == "." || fill == "" && isStruct {
			f.holes = in.holes
		}
		if isStruct {
			fields = appendFields(fields, of.Field(i).Type, &f)
			continue
		}
		f.is = kindOf(tag.Get("is"), of.Field(i).Type)
		fields = append(fields, f)
	}
	return fields
}

// holes are the sets of placeholders, see template.go.
var holes = map[string][]string{
	"profile": {holeAgent, holeProfile, holeHome, holeProfileHome},
	"rename":  {holeAgent, holeProfile, holeTo, holeHome, holeProfileHome},
	"cwd":     {holeHome, holeProfile, holeProfileHome},
	"service": {holeAgent, holeHome},
	"home":    {holeHome},
	"run":     {holeAgent, holeProfile, holeTask, holeOptions, holeHome, holeProfileHome},
}

// kind describes the valid values of a key beyond its Go type.
type kind struct {
	name  string // name in the reference and in errors; "": by the Go type
	check check
}

// check gets the pointer that field.at returns. It returns the fault of the value, or "".
type check func(at any) string

// kinds has the check for each word of the struct tag "is", and its name for people.
var kinds = sync.OnceValue(func() map[string]kind {
	return map[string]kind{
		"address":     {"IP address", of(checkHost)},
		"auto":        {"auto or a number", of(checkParallel)},
		"codes":       {"list of exit codes", eachBetween(0, 255, "an exit code")},
		"command":     {"command", of(checkCommand)},
		"cpus":        {"list of processors", parsed(cpulist.Parse)},
		"cron":        {"schedule", parsed(func(s string) (cronspec.Spec, error) { return cronspec.Parse(s, "") })},
		"dir":         {"path", of(checkDirTemplate)},
		"envfiles":    {check: of(checkEnvFiles)},
		"filename":    {"file name", of(checkFileName)},
		"group":       {"name of a group", of(checkProfileName)},
		"headers":     {check: of(checkHeaders)},
		"home":        {"path", of(checkHome)},
		"inputs":      {"list of paths and globs", of(checkInputs)},
		"name":        {check: of(checkProfileName)},
		"names":       {name: "list of names"},
		"notnegative": durationThat("of 0s or more", func(d time.Duration) bool { return d >= 0 }),
		"path":        {"path", of(checkAbs)},
		"paths":       {"list of paths", of(checkShare)},
		"port":        {"port", of(checkPort)},
		"ports":       {"list of ports", eachBetween(1, 65535, "a port")},
		"positive":    durationThat("above zero", func(d time.Duration) bool { return d > 0 }),
		"regexp":      {"regular expression", of(checkRegexp)},
		"signal":      {signalWords(), of(checkSignal)},
		"socket":      {"path", of(checkSocket)},
		"status":      {"status codes", parsed(ParseStatus)},
		"uids":        {"range of uids", of(checkUIDs)},
		"umask":       {"octal number", of(checkUmask)},
		"url":         {"URL", of(checkURL)},
		"user":        {"user", of(checkUser)},
		"variable":    {"variable", of(checkVar)},
		"webhook":     {"URL", of(checkWebhook)},
		"zone":        {"time zone", parsed(cronspec.Zone)},
	}
})

// kindOf returns the valid values that a tag describes, for a value of this Go type. A tag has the name of one of kinds, "oneof
// WORD…", "between LEAST MOST", or "atleast DURATION". After "?" an empty value is valid too.
func kindOf(is string, of reflect.Type) (k kind) {
	words := strings.Fields(is)
	if is == "" {
		return kind{name: typeName(of)}
	}
	word, isOptional := strings.CutSuffix(words[0], "?")
	switch words := words[1:]; word {
	case "oneof":
		k = oneOf(words...)
	case "between":
		k = between(words[0], words[1])
	case "atleast":
		least, _ := time.ParseDuration(words[0])
		k = durationThat(fmt.Sprintf("from %v to 24h", least), func(d time.Duration) bool { return d >= least && d <= 24*time.Hour })
	default:
		k = kinds()[word]
	}
	if isOptional {
		return optional(k)
	}
	return k
}

// typeName returns words for people that describe a setting of a Go type, or "" for other types.
func typeName(of reflect.Type) string {
	switch of {
	case reflect.TypeFor[Actions]():
		return "mapping of events to actions"
	case reflect.TypeFor[[]Hook]():
		return "list of hooks"
	case reflect.TypeFor[[]Need]():
		return "list of names, or of mappings with `name`, `until` and `optional`"
	case reflect.TypeFor[map[string]ResourceLimit]():
		return "mapping of limit names to numbers or `unlimited`"
	case reflect.TypeFor[syscall.Signal]():
		return signalWords()
	}
	return ""
}

// signals are the valid stop signals, in the order of the reference.
var signals = []string{"TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "KILL"}

func signalWords() string { return "signal: `" + strings.Join(signals, "`, `") + "`" }

// limitNames are the resource limits of getrlimit(2), without the prefix RLIMIT_ and in lower case.
var limitNames = []string{
	"as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss", "rtprio",
	"sigpending", "stack",
}
