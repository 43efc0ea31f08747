// Package cmdline implements the parts that the command lines of hinit's programs share: exit codes, flags in any position, help,
// and suggestions for unknown words. Its only goroutine belongs to [signal.NotifyContext] in [Interruptible].
package cmdline

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/account"
	"hinit/internal/config"
	"hinit/internal/control/show"
	"hinit/internal/nearest"
)

// The exit codes that all commands share.
const (
	Done        = 0
	Failed      = 1
	WrongUsage  = 2
	NotUp       = 3 // a named service is not up
	Unreachable = 4 // no hinit answers
	NotAllowed  = 5
	Unknown     = 6 // no such profile or service
)

// Code returns the exit code for an error of a request to hinit.
func Code(err error) int {
	switch {
	case err == nil:
		return Done
	case errors.Is(err, client.ErrUnreachable):
		return Unreachable
	case errors.Is(err, client.ErrNotAllowed):
		return NotAllowed
	case errors.Is(err, client.ErrUnknown):
		return Unknown
	}
	return Failed
}

// Verb describes one command for its help and messages.
type Verb struct {
	Program       string // the words that people type before the name: "hinit", "hinit kanban"
	Name, Args    string
	Summary, Help string
	Doing         string   // the action, as errors name it after "cannot"; the default is "run PROGRAM NAME"
	Aliases       []string // other names of the command
	Leading       bool     // flags end at the first word that is not a flag
}

// Command returns the command as people type it, without its arguments.
func (v Verb) Command() string { return strings.TrimSpace(v.Program + " " + v.Name) }

// Call is one run of a verb.
type Call struct {
	Verb
	Args     []string
	Flags    *flag.FlagSet
	Out, Err io.Writer
	Env      func(name string) (string, bool)
}

// NewCall returns a call of v that reads the environment of this process.
func NewCall(v Verb, args []string, out, errs io.Writer) *Call {
	return &Call{Verb: v, Args: args, Flags: Flags(v.Name), Out: out, Err: errs, Env: os.LookupEnv}
}

// Parse parses the arguments of the call, see [Verb.Parse].
func (c *Call) Parse(atLeast, atMost int) (words []string, code int, ok bool) {
	return c.Verb.Parse(c.Flags, c.Args, atLeast, atMost, c.Out, c.Err)
}

// Variable returns the value of an environment variable. The parameter otherwise is the default, for a variable that is
// unset or empty.
func (c *Call) Variable(name, otherwise string) string {
	if v, _ := c.Env(name); v != "" {
		return v
	}
	return otherwise
}

// Fail prints the reason why the command failed on one line of c.Err, and returns code. It escapes control characters, so that
// they have no effect on a terminal.
func (c *Call) Fail(code int, format string, args ...any) int {
	fmt.Fprintln(c.Err, show.Line(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")))
	return code
}

// Failed prints err as Fail does, and returns the exit code for err. If err is nil, it returns [Done]. doing is the failed
// action, in words that can follow "cannot". It is printed if err does not name an action.
func (c *Call) Failed(doing string, err error) int {
	if err == nil {
		return Done
	}
	return c.Fail(Code(err), "%s", Message(doing, err))
}

// Message returns one line with the failed action and the reason. doing is the action, in words that can follow "cannot". It is
// used if err does not name an action itself.
func Message(doing string, err error) string {
	text := err.Error()
	if said, is := errors.AsType[*client.Error](err); is {
		text = "cannot " + doing + ": " + said.Message
	} else if !strings.HasPrefix(text, "cannot ") {
		text = "cannot " + doing + ": " + text
	}
	return strings.ReplaceAll(text, "\n", "; ")
}

// Flags returns an empty set of flags for a verb. The set itself prints nothing: [Verb.Parse] prints errors and the help.
func Flags(name string) *flag.FlagSet {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	return flags
}

// List is a flag whose value is a list of words. The flag may be given several times, and commas or spaces separate words.
type List []string

// String implements flag.Value.
func (l *List) String() string { return strings.Join(*l, ",") }

// Set implements flag.Value.
func (l *List) Set(text string) error {
	*l = append(*l, strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })...)
	return nil
}

// Parse reads flags, which may appear anywhere before a lone "--", and returns the other words. The number of words must be
// between atLeast and atMost; -1 for atMost means no limit. If ok is false, the command must exit with code: Parse has printed
// the help to out, or an error to errs.
func (v Verb) Parse(flags *flag.FlagSet, args []string, atLeast, atMost int, out, errs io.Writer) (words []string, code int, ok bool) {
	for len(args) > 0 {
		if err := flags.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				v.Usage(flags, out)
				return nil, Done, false
			}
			_, unknown, _ := strings.Cut(err.Error(), "flag provided but not defined: -") // "" after another error
			letter := unknown[:min(1, len(unknown))]
			value := strings.TrimPrefix(unknown, letter)
			if _, err := strconv.Atoi(value); err == nil && flags.Lookup(letter) != nil { // a flag such as -n1
				args = append([]string{"-" + letter, value}, flags.Args()...)
				continue
			}
			fmt.Fprintf(errs, "cannot %s: %v%s; see: %s --help\n", v.doing(), err, flagMeant(flags, unknown), v.Command())
			return nil, WrongUsage, false
		}
		left := flags.Args()
		if len(left) == 0 {
			break
		}
		if parsed := len(args) - len(left); v.Leading || parsed > 0 && args[parsed-1] == "--" {
			words = append(words, left...)
			break
		}
		words, args = append(words, left[0]), left[1:]
	}
	if !v.Counted(words, atLeast, atMost, errs) {
		return nil, WrongUsage, false
	}
	return words, Done, true
}

// Counted reports whether the number of words is between atLeast and atMost. If not, it prints which arguments the verb expects.
func (v Verb) Counted(words []string, atLeast, atMost int, errs io.Writer) bool {
	if len(words) >= atLeast && (atMost < 0 || len(words) <= atMost) {
		return true
	}
	fmt.Fprintf(errs, "cannot %s: expected: %s\n", v.doing(), strings.TrimSpace(v.Command()+" "+v.Args))
	return false
}

func (v Verb) doing() string { return cmp.Or(v.Doing, "run "+v.Command()) }

// Usage prints the help of a verb.
func (v Verb) Usage(flags *flag.FlagSet, w io.Writer) {
	fmt.Fprintf(w, "usage: %s\n\n%s\n", strings.TrimSpace(v.Command()+" "+v.Args), v.Summary)
	if len(v.Aliases) > 0 {
		fmt.Fprintf(w, "Also: %s\n", strings.Join(v.Aliases, ", "))
	}
	if v.Help != "" {
		fmt.Fprintf(w, "\n%s\n", v.Help)
	}
	first := true
	flags.VisitAll(func(f *flag.Flag) {
		if first {
			fmt.Fprintln(w)
			first = false
		}
		name, text := flag.UnquoteUsage(f)
		fmt.Fprintf(w, "  %-18s %s\n", strings.TrimSpace(Dashed(f.Name)+" "+name), text)
	})
}

// Bounds returns the minimum and maximum number of words that a verb accepts, for [Verb.Parse]. args describes its arguments, as
// in "NAME [FILE]".
func Bounds(args string) (atLeast, atMost int) {
	for word := range strings.FieldsSeq(args) {
		switch {
		case word == "[--]":
			continue
		case !strings.HasPrefix(word, "["):
			atLeast++
		}
		if atMost++; strings.Contains(word, "...") {
			return atLeast, -1
		}
	}
	return atLeast, atMost
}

// DidYouMean suggests the known word that is most similar to an unknown word. The result is the end of a message about the
// unknown word. It is "" if no known word is similar.
func DidYouMean(word string, known []string) string {
	if near := nearest.Word(word, known); near != "" && near != word {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	return ""
}

// flagMeant returns a suggestion, as DidYouMean does, for a flag that the verb does not have. If unknown is "", the result is "".
func flagMeant(flags *flag.FlagSet, unknown string) string {
	if unknown == "" {
		return ""
	}
	var known []string
	flags.VisitAll(func(f *flag.Flag) { known = append(known, Dashed(f.Name)) })
	return DidYouMean(Dashed(unknown), known)
}

// Dashed returns a flag with its dashes, as people type it: -n or --json.
func Dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// Beside returns the path of a program that is installed in the same directory as this program. If the file is missing, it also
// returns an error that wraps [fs.ErrNotExist].
func Beside(program string) (path string, err error) {
	self, err := os.Executable()
	path = filepath.Join(filepath.Dir(self), program)
	if err == nil {
		_, err = os.Stat(path)
	}
	return path, err
}

// Hinit returns the path of hinit, which is installed beside this program. In a container image, its name is init, the entry
// point.
func Hinit() (string, error) {
	path, err := Beside("hinit")
	if errors.Is(err, fs.ErrNotExist) {
		return Beside("init")
	}
	return path, err
}

// Interruptible returns a context that ends with Ctrl-C or SIGTERM.
func Interruptible() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
}

// ParseDuration reads a duration such as 10m. Unlike [time.ParseDuration], it accepts days (1d) and weeks (2w).
func ParseDuration(text string) (time.Duration, error) {
	for suffix, hours := range map[string]float64{"d": 24, "w": 7 * 24} {
		if n, err := strconv.ParseFloat(strings.TrimSuffix(text, suffix), 64); err == nil && strings.HasSuffix(text, suffix) {
			text = strconv.FormatFloat(n*hours, 'f', -1, 64) + "h"
		}
	}
	return time.ParseDuration(text)
}

// IsSelector reports whether an argument of a command can stand for several services: a pattern of path.Match, or @GROUP.
func IsSelector(word string) bool {
	return strings.HasPrefix(word, "@") || strings.ContainsAny(word, "*?[")
}

// Matches reports whether the argument word selects a service: it is the service's name, profile or @GROUP, or a pattern that
// matches its name or profile.
func Matches(word string, s *client.Service) bool {
	if group, is := strings.CutPrefix(word, "@"); is {
		return group != "" && group == s.Group // "" is not a group
	}
	byName, _ := path.Match(word, s.Name) // an invalid pattern matches nothing
	byProfile, _ := path.Match(word, s.Profile)
	return byName || byProfile && s.Profile != ""
}

// Finds reports whether a word of a search finds a service. A word that is a selector finds what it selects. Any other word finds
// the services whose text contains it, ignoring case.
func Finds(word, text string, s *client.Service) bool {
	if IsSelector(word) {
		return Matches(word, s)
	}
	return strings.Contains(strings.ToLower(text), strings.ToLower(word))
}

// Env looks up an environment variable, as [os.LookupEnv] does.
type Env = func(name string) (string, bool)

// Here returns a client of the init of this container. It does not connect, see [dial.Here].
func Here(env Env) *dial.Client { return dial.Here(configuredSocket(env), env) }

// Dial connects to the init of this container, see [dial.Find]. It works even if the configuration has mistakes.
func Dial(env Env) (*dial.Client, error) { return dial.Find(configuredSocket(env), env) }

// configuredSocket returns the path of the control socket from the configuration file. The result is "" if the file does not
// set the path or HINIT_RUNTIME_DIR wins over the file. configuredSocket reads no other key: most commands need only this
// key and live for two milliseconds.
func configuredSocket(env Env) string {
	if dir, _ := env("HINIT_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return ""
	}
	text := config.TrustedText(env)
	if !bytes.Contains(text, []byte("socket")) && !bytes.Contains(text, []byte(`\`)) { // with a backslash, the key may have escapes
		return ""
	}
	var file struct {
		Control struct {
			Socket string `yaml:"socket"`
		} `yaml:"control"`
	}
	if yaml.Unmarshal(text, &file) != nil || !filepath.IsAbs(file.Control.Socket) {
		return ""
	}
	return file.Control.Socket
}

// ReadIsolated returns the list of isolated profiles that the hinit with this control socket has written, see
// [account.IsolatedFile]. It is "" if no profile is isolated. An abstract socket has no directory, so the list is unknown, which
// is an error. ReadIsolated may block on the disk.
func ReadIsolated(socket string) (string, error) {
	if !strings.HasPrefix(socket, "/") {
		return "", fmt.Errorf("cannot list the isolated profiles: the control socket %q has no directory; mount a tmpfs on /run", socket)
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(socket), account.IsolatedFile))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return string(text), err
}
