package config

import (
	"cmp"
	_ "embed"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"hinit/internal/cpulist"
	"hinit/internal/cronspec"
)

// JSONSchema is the JSON schema (draft 2020-12) of hinit.yaml for editors. It has keys, types and choices; rules about more than
// one key are checked by [Load] only. internal/gendocs generates it from the struct tags.
//
//go:embed hinit.schema.json
var JSONSchema string

// Key is one key of hinit.yaml. The struct into which a mapping is decoded is the root of its keys. Struct tags define everything
// about a key except its description, which is in the reference (internal/gendocs):
//
//   - key: the path below the enclosing struct, and options. A path that is empty or ends in a dot belongs to a struct with more
//     keys. The option "root" is for keys that decide which user runs a program, where root works, or how large PID 1 gets: they
//     are accepted only from a file that root alone can change. The option "short" says that a text in place of the key's mapping
//     sets this key.
//   - is: the valid values, see valueTypeOf.
//   - env: the environment variable that wins over the file.
//   - inherits: the key whose value is used while this one isn't set.
//   - fill: which placeholders its text may have, see placeholders. On a struct, it is for the fields with fill ".".
//   - without: a key that the embedded struct defines and that is not allowed here.
//   - alias: another spelling of the key. On a struct: keys of it that are also valid outside its mapping.
type Key struct {
	Path            string // path below the root, with dots
	Env             string
	Inherits        string
	Alias           string   // the other path, if this key is an alias
	Placeholders    []string // valid placeholders; nil if the value is no template
	RootOnly        bool
	AllowsShortForm bool

	valueType
	index       []int  // struct fields that lead from the root to the value, for reflect.Value.FieldByIndex
	excludedKey string // key of the embedded struct that is invalid for this key
}

// ValuePointer returns a pointer to the key's value. root is a pointer to the struct of the mapping.
func (k *Key) ValuePointer(root any) any {
	return reflect.ValueOf(root).Elem().FieldByIndex(k.index).Addr().Interface()
}

// keysByRoot caches the results of [Keys], as reflect.Type → []Key. Computing them at package initialisation would delay every
// command.
var keysByRoot sync.Map

// Keys returns the keys of the struct T, a mapping of hinit.yaml.
func Keys[T any]() []Key {
	root := reflect.TypeFor[T]()
	if made, ok := keysByRoot.Load(root); ok {
		return made.([]Key)
	}
	inherits := map[reflect.Type]string{reflect.TypeFor[LogLimits](): "logs."}[root] // limits in logs.profiles.NAME inherit from logs
	keys := appendKeys(nil, root, &Key{Inherits: inherits})
	keysByRoot.Store(root, keys)
	return keys
}

// appendKeys appends the keys of the struct type of. in is the key of the field with this type.
func appendKeys(keys []Key, of reflect.Type, in *Key) []Key {
	for i := range of.NumField() {
		tag := of.Field(i).Tag
		words, isKey := tag.Lookup("key")
		name, options, _ := strings.Cut(words, ",")
		if !isKey || name != "" && name == in.excludedKey {
			continue
		}
		k := Key{
			Path: in.Path + name, Env: tag.Get("env"), Inherits: tag.Get("inherits"), excludedKey: cmp.Or(tag.Get("without"), in.excludedKey),
			RootOnly: in.RootOnly || strings.Contains(options, "root"), AllowsShortForm: strings.Contains(options, "short"), index: append(slices.Clone(in.index), i),
		}
		if k.Inherits == "" && in.Inherits != "" {
			k.Inherits = in.Inherits + name
		}
		fill, isStruct := tag.Get("fill"), of.Field(i).Type.Kind() == reflect.Struct
		k.Placeholders = placeholders[fill]
		if fill == "." || fill == "" && isStruct {
			k.Placeholders = in.Placeholders
		}
		if isStruct {
			keys = appendKeys(keys, of.Field(i).Type, &k)
		} else {
			k.valueType = valueTypeOf(tag.Get("is"))
			keys = append(keys, k)
		}
		for alias := range strings.FieldsSeq(tag.Get("alias")) {
			path := k.Path
			if isStruct {
				path += alias
			}
			at := slices.IndexFunc(keys, func(k Key) bool { return k.Path == path })
			other := keys[at]
			other.Path, other.Alias, other.Inherits = in.Path+alias, path, ""
			keys = slices.Insert(keys, at+1, other)
		}
	}
	return keys
}

// placeholders maps each value of the struct tag "fill" to the placeholders that it allows, see template.go.
var placeholders = map[string][]string{
	"profile": {agentPlaceholder, profilePlaceholder, homePlaceholder, profileHomePlaceholder},
	"rename":  {agentPlaceholder, profilePlaceholder, newNamePlaceholder, homePlaceholder, profileHomePlaceholder},
	"cwd":     {homePlaceholder, profilePlaceholder, profileHomePlaceholder},
	"service": {agentPlaceholder, homePlaceholder},
	"home":    {homePlaceholder},
	"run":     {agentPlaceholder, profilePlaceholder, taskPlaceholder, optionsPlaceholder, homePlaceholder, profileHomePlaceholder},
}

// valueType describes the valid values of a key.
type valueType struct {
	Type  string // name in the reference and in messages; "" if the Go type says enough
	check validator
}

// validator returns why the value at *at is invalid, or "". at is the result of [Key.ValuePointer].
type validator func(at any) string

// valueTypes maps each name in the struct tag "is" to its type.
var valueTypes = sync.OnceValue(func() map[string]valueType {
	return map[string]valueType{
		"address":     hostValueType(),
		"auto":        textType("auto or a number", isParallel, "expected "+ParallelAuto+" or a number from 1, got %q"),
		"codes":       {"list of exit codes", checkNumbers(0, 255, "an exit code")},
		"command":     {"command", newValidator(checkCommand)},
		"cpus":        {"processors", checkParsed(cpulist.Parse)},
		"cron":        {"schedule", checkParsed(func(s string) (cronspec.Spec, error) { return cronspec.Parse(s, "") })},
		"dir":         {"path", newValidator(checkDirTemplate)},
		"envfiles":    {check: checkEach[Paths](checkEnvFile)},
		"filename":    textType("file name", isFileName, "expected the name of a file, got %q"),
		"group":       {"name of a group", newValidator(checkProfileName)},
		"headers":     {check: newValidator(checkHeaders)},
		"home":        {"path", newValidator(checkHome)},
		"inputs":      {"list of paths and globs", checkEach[[]string](checkInput)},
		"name":        {check: newValidator(checkProfileName)},
		"names":       {Type: "list of names"},
		"notnegative": durationType("of 0s or more", func(d time.Duration) bool { return d >= 0 }),
		"path":        {"path", newValidator(checkAbsolutePath)},
		"paths":       {"list of paths", checkEach[Paths](checkSharedPath)},
		"port":        portValueType(),
		"ports":       {"list of ports", checkNumbers(1, 65535, "a port")},
		"positive":    durationType("above zero", func(d time.Duration) bool { return d > 0 }),
		"regexp":      {"regular expression", newValidator(checkRegexp)},
		"signal":      textType("signal: `"+strings.Join(Signals, "`, `")+"`", isSignal, "%q is none of "+strings.Join(Signals, ", ")),
		"socket":      {"path", newValidator(checkSocket)},
		"status":      {"status codes", checkParsed(ParseStatus)},
		"uids":        {"range of uids", checkParsed(parseUIDs)},
		"umask":       textType("octal number", isUmask, "expected three octal digits such as \"027\", got %q"),
		"url":         {"URL", newValidator(checkURL)},
		"user":        textType("user", isUser, "expected a user name, a uid or user:group, got %q"),
		"variable":    textType("variable", isVariable, "expected the name of an environment variable, got %q"),
		// the address may be a secret, so the message leaves it out
		"webhook": textType("URL", isWebhook, "expected a URL such as https://example.org/hooks/1, got another scheme or no host"),
		"zone":    {"time zone", checkParsed(cronspec.LoadZone)},
	}
})

// valueTypeOf parses a struct tag "is": a name in valueTypes, "oneof WORD…", "between LEAST MOST" or "atleast DURATION". A "?"
// after the first word also allows an empty value. Without a tag, all values are valid.
func valueTypeOf(is string) (k valueType) {
	words := strings.Fields(is)
	if is == "" {
		return k
	}
	word, isOptional := strings.CutSuffix(words[0], "?")
	switch words := words[1:]; word {
	case "oneof":
		k = oneOf(words...)
	case "between":
		k = rangeType(words[0], words[1])
	case "atleast":
		least, _ := time.ParseDuration(words[0])
		k = durationType(fmt.Sprintf("from %v to 24h", least), func(d time.Duration) bool { return d >= least && d <= 24*time.Hour })
	default:
		k = valueTypes()[word]
	}
	if isOptional {
		return allowEmpty(k)
	}
	return k
}

// Signals are the valid stop signals, in the order of the reference.
var Signals = []string{"TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "KILL"}

// limitNames are the resource limits of getrlimit(2): RLIMIT_NOFILE is nofile.
var limitNames = []string{
	"as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss", "rtprio",
	"sigpending", "stack",
}
