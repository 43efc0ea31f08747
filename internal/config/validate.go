package config

import (
	"fmt"
	"math"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// sunPathMax is the longest path of a Unix socket: sun_path of unix(7) without its NUL.
const sunPathMax = 107

// checkHome returns why s can't be the data directory, or "". It refuses relative paths, and directories of the system, because
// the boot gives the data directory to the agent's user.
func checkHome(s string) string {
	if reason := checkAbsolutePath(s); reason != "" {
		return reason
	}
	switch home := filepath.Clean(s); home {
	case "/":
		return "the root directory cannot be the home"
	case "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/tmp", "/usr", "/var":
		return home + " is the system's and cannot be the home, which is given to the agent's user"
	}
	return ""
}

func checkAbsolutePath(s string) string {
	if strings.HasPrefix(s, "$") || strings.HasPrefix(s, "~") {
		return fmt.Sprintf("expected an absolute path, got %q; write it out, because variables and ~ are not filled in", s)
	} else if !filepath.IsAbs(s) {
		return fmt.Sprintf("expected an absolute path, got %q", s)
	}
	return ""
}

// checkDirTemplate returns why s is not an absolute path, or "". s may begin with a placeholder that stands for a path.
func checkDirTemplate(s string) string {
	if strings.HasPrefix(s, "{"+homePlaceholder+"}") || strings.HasPrefix(s, "{"+profileHomePlaceholder+"}") {
		return ""
	}
	return checkAbsolutePath(s)
}

func checkSocket(s string) string {
	if reason := checkAbsolutePath(s); reason != "" {
		return reason
	}
	if len(s) > sunPathMax {
		return fmt.Sprintf("the path of a socket can have %d bytes, this one has %d", sunPathMax, len(s))
	}
	return ""
}

func isFileName(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(s, "/\n")
}

func isParallel(s string) bool {
	n, err := strconv.Atoi(s)
	return s == ParallelAuto || err == nil && n >= 1
}

func isUmask(s string) bool {
	n, err := strconv.ParseUint(s, 8, 32)
	return err == nil && n <= 0o777 && len(s) >= 3
}

// isUser reports whether s has the form USER or USER:GROUP. Only the container can tell whether the user exists.
func isUser(s string) bool {
	user, group, both := strings.Cut(s, ":")
	return isAccount(user) && (!both || isAccount(group))
}

func isAccount(s string) bool {
	forbidden := func(r rune) bool { return r <= ' ' || strings.ContainsRune("\x7f/:,", r) }
	return s != "" && s[0] != '-' && !strings.ContainsFunc(s, forbidden)
}

func checkCommand(words []string) string {
	if len(words) == 0 {
		return "a command cannot be empty"
	}
	if words[0] == "" {
		return "the first word of a command cannot be empty"
	}
	return ""
}

// checkInput returns why a path or glob can't be an input of a hook, or "".
func checkInput(p string) string {
	if reason := checkDirTemplate(p); reason != "" && !strings.HasPrefix(p, "$") {
		return reason
	}
	if _, err := filepath.Match(p, ""); err != nil {
		return fmt.Sprintf("%q is no glob: %v", p, err)
	}
	if slices.Contains(strings.Split(p, "/"), "..") {
		return fmt.Sprintf("a path without \"..\" is expected, got %q", p)
	}
	return ""
}

// isVariable reports whether s can name an environment variable (environ(7)).
func isVariable(s string) bool { return s != "" && !strings.ContainsAny(s, "=\x00") }

// newValidator makes a validator for values of type T. reason returns why a value is invalid, or "".
func newValidator[T any](reason func(T) string) validator {
	return func(at any) string { return reason(*at.(*T)) }
}

// checkParsed makes a validator for texts. The error of parse says why a text is invalid.
func checkParsed[T any](parse func(string) (T, error)) validator {
	return newValidator(func(s string) string {
		if _, err := parse(s); err != nil {
			return err.Error()
		}
		return ""
	})
}

// textType returns the type of texts for which ok returns true. problem is the message about any other text; %q in it stands for
// the text.
func textType(name string, ok func(string) bool, problem string) valueType {
	return valueType{name, newValidator(func(s string) string {
		if ok(s) {
			return ""
		}
		return strings.ReplaceAll(problem, "%q", strconv.Quote(s))
	})}
}

func checkEach[L ~[]E, E any](reason func(E) string) validator {
	return newValidator(func(list L) string {
		for _, element := range list {
			if why := reason(element); why != "" {
				return why
			}
		}
		return ""
	})
}

// checkNumbers makes a validator for lists of numbers between least and most. The argument what describes a number in messages,
// such as "a port".
func checkNumbers(least, most int, what string) validator {
	return checkEach[[]int](func(n int) string {
		if n < least || n > most {
			return fmt.Sprintf("%s is from %d to %d, got %d", what, least, most, n)
		}
		return ""
	})
}

// durationType returns the type of durations for which ok returns true. is describes these durations in messages, such as
// "above zero".
func durationType(is string, ok func(time.Duration) bool) valueType {
	return valueType{check: func(at any) string {
		if d := *at.(*time.Duration); !ok(d) {
			return fmt.Sprintf("expected a duration %s, got %s", is, formatDuration(d))
		}
		return ""
	}}
}

// rangeType returns the type of numbers between least and most, which are the words of the struct tag.
func rangeType(least, most string) valueType {
	return valueType{check: func(at any) string {
		n := reflect.ValueOf(at).Elem().Convert(reflect.TypeFor[float64]()).Float()
		lo, _ := strconv.ParseFloat(least, 64)
		hi, _ := strconv.ParseFloat(most, 64)
		if !(n >= lo && n <= hi) {
			return fmt.Sprintf("expected a number from %s to %s, got %v", least, most, reflect.ValueOf(at).Elem())
		}
		return ""
	}}
}

// allowEmpty returns the type k, extended by the empty value.
func allowEmpty(k valueType) valueType {
	return valueType{k.Type, func(at any) string {
		if v := reflect.ValueOf(at).Elem(); v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0 {
			return ""
		}
		return k.check(at)
	}}
}

func oneOf(words ...string) valueType {
	isListed := func(s string) bool { return slices.Contains(words, s) }
	return textType("`"+strings.Join(words, "`, `")+"`", isListed, "expected one of "+strings.Join(words, ", ")+", got %q")
}

// checkRestart names contradictory values of a restart policy, or returns "".
func checkRestart(r *Restart) string {
	if r.MaxDelay < r.InitialDelay {
		return fmt.Sprintf("max (%s) is shorter than initial (%s)", formatDuration(r.MaxDelay), formatDuration(r.InitialDelay))
	}
	for _, code := range r.ParkCodes {
		if slices.Contains(r.ImmediateCodes, code) {
			return fmt.Sprintf("exit code %d is in both park_on and immediate_on", code)
		}
	}
	return ""
}

const nameRule = `a name is 1 to 64 of "a" to "z", "0" to "9", "_" and "-", and begins with a letter or digit`

// checkServiceName returns why a name is invalid for a service, or "".
func checkServiceName(name string) string {
	switch {
	case name == "cmd" || name == "main-hermes":
		return "the name is taken by hinit itself"
	case strings.HasPrefix(name, "gateway-"):
		return `names that begin with "gateway-" belong to the gateways of profiles`
	case !IsValidName(name):
		return nameRule
	}
	return ""
}

func checkProfileName(name string) string {
	if !IsValidName(name) {
		return nameRule
	}
	return ""
}

var validName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`) })

// IsValidName reports whether s is valid as the name of a service, a profile or a group of services. The limit of 64 characters
// comes from the agent.
func IsValidName(s string) bool { return validName().MatchString(s) }

// parseSecondsOrDuration parses a duration, or a number of seconds such as 7.5.
func parseSecondsOrDuration(text string) (d time.Duration, reason string) {
	if f, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(f) && !math.IsInf(f, 0) {
		text = strconv.FormatFloat(f, 'f', -1, 64) + "s"
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		reason = "expected a duration such as 8s, or a number of seconds"
	}
	return d, reason
}

// parseSwitch parses a boolean as the image's scripts do, but refuses a text that means neither yes nor no.
func parseSwitch(text string) (on bool, reason string) {
	on = IsShellTruthy(text)
	if !on && !IsFalse(text) {
		reason = "expected 1, true or yes, or 0, false or no"
	}
	return on, reason
}

// runtimeDirVar is the environment variable with the directory of the control socket.
const runtimeDirVar = "HINIT_RUNTIME_DIR"

// socketInDir returns the path of the control socket in dir. If dir is invalid, the second result says why; otherwise it is "".
func socketInDir(dir string) (string, string) {
	if !filepath.IsAbs(dir) {
		return "", "expected an absolute path"
	}
	return filepath.Join(dir, SocketName), ""
}

// SocketName is the name of the control socket in its directory.
const SocketName = "control.sock"
