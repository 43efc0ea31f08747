// Package cmdline holds the common parts of the command lines of hinit's programs. These are exit codes, flags in any position,
// help, suggestions for mistyped words, and the connection to PID 1. It starts no goroutine, except the one of
// [signal.NotifyContext] in [InterruptibleContext].
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
	"regexp"
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

// The exit codes of all commands.
const (
	ExitDone        = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitNotUp       = 3 // a named service is not up
	ExitUnreachable = 4 // no hinit answers
	ExitNotAllowed  = 5
	ExitUnknown     = 6 // the profile or service does not exist
)

// ExitCode returns the exit code of a command for err, the error of its request to hinit.
func ExitCode(err error) int {
	switch {
	case err == nil:
		return ExitDone
	case errors.Is(err, client.ErrUnreachable):
		return ExitUnreachable
	case errors.Is(err, client.ErrNotAllowed):
		return ExitNotAllowed
	case errors.Is(err, client.ErrUnknown):
		return ExitUnknown
	}
	return ExitFailed
}

// Verb describes one command, for its help and its messages.
type Verb struct {
	Program       string // words before the name on the command line: "hinit", "hinit kanban"
	Name, Args    string
	Summary, Help string
	Action        string   // action in errors after "cannot"; if empty, "run PROGRAM NAME"
	Aliases       []string // other names of the command
	FlagsFirst    bool     // flags end at the first other word, because that word begins another command line
}

// Command returns the command as people type it, without its arguments.
func (v Verb) Command() string { return strings.TrimSpace(v.Program + " " + v.Name) }

// Call is one run of a command.
type Call struct {
	Verb
	Args     []string
	Flags    *flag.FlagSet
	Out, Err io.Writer
	Env      func(name string) (string, bool) // looks up an environment variable
}

// NewCall returns a call of v without flags; the caller defines them. It reads the environment of this process.
func NewCall(v Verb, args []string, out, errs io.Writer) *Call {
	return &Call{Verb: v, Args: args, Flags: NewFlagSet(v.Name), Out: out, Err: errs, Env: os.LookupEnv}
}

// Parse parses the arguments of the call as [Verb.Parse] does.
func (c *Call) Parse(atLeast, atMost int) (words []string, code int, ok bool) {
	return c.Verb.Parse(c.Flags, c.Args, atLeast, atMost, c.Out, c.Err)
}

// EnvOr returns the value of an environment variable. If the variable is unset or empty, it returns otherwise.
func (c *Call) EnvOr(name, otherwise string) string {
	if v, _ := c.Env(name); v != "" {
		return v
	}
	return otherwise
}

// Fail prints a message on one line of c.Err and returns code. It escapes control characters, which could change the terminal.
func (c *Call) Fail(code int, format string, args ...any) int {
	fmt.Fprintln(c.Err, show.EscapeLine(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")))
	return code
}

// ReportError prints err and returns the exit code for it. If err is nil, ReportError prints nothing and returns [ExitDone].
// doing is the failed action, in words that can follow "cannot"; it is used if err names no action.
func (c *Call) ReportError(doing string, err error) int {
	if err == nil {
		return ExitDone
	}
	return c.Fail(ExitCode(err), "%s", FailureMessage(doing, err))
}

// FailureMessage returns one line with the failed action and the reason. doing is the action, in words that can follow "cannot".
// If err already names an action, FailureMessage omits doing.
func FailureMessage(doing string, err error) string {
	text := err.Error()
	if clientErr, is := errors.AsType[*client.Error](err); is {
		text = "cannot " + doing + ": " + clientErr.Message
	} else if !strings.HasPrefix(text, "cannot ") {
		text = "cannot " + doing + ": " + text
	}
	return strings.ReplaceAll(text, "\n", "; ")
}

// NewFlagSet returns an empty flag set. It prints nothing, because [Verb.Parse] prints the errors and the help.
func NewFlagSet(name string) *flag.FlagSet {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	return flags
}

// ListFlag is a flag whose value is a list of words. The flag may be given several times, and commas or spaces separate words.
type ListFlag []string

// String implements flag.Value.
func (l *ListFlag) String() string { return strings.Join(*l, ",") }

// Set implements flag.Value.
func (l *ListFlag) Set(text string) error {
	*l = append(*l, strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })...)
	return nil
}

// Parse reads flags, which may appear anywhere before a separate argument "--", and returns the other words. Their number must be
// between atLeast and atMost; -1 for atMost means no limit. If ok is false, the command must exit with code: Parse has printed
// the help to out, or an error to errs.
func (v Verb) Parse(flags *flag.FlagSet, args []string, atLeast, atMost int, out, errs io.Writer) (words []string, code int, ok bool) {
	for len(args) > 0 {
		if err := flags.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				v.Usage(flags, out)
				return nil, ExitDone, false
			}
			_, unknown, _ := strings.Cut(err.Error(), "flag provided but not defined: -") // unknown is "" if the error is about anything else
			letter := unknown[:min(1, len(unknown))]
			value := strings.TrimPrefix(unknown, letter)
			if _, err := strconv.Atoi(value); err == nil && flags.Lookup(letter) != nil { // a flag such as -n1
				args = append([]string{"-" + letter, value}, flags.Args()...)
				continue
			}
			oneDash := regexp.MustCompile(`((?:flag|for|defined:|argument:) )-([^-\s:][^\s:]+)`) // package flag writes long names with one dash
			text := oneDash.ReplaceAllString(err.Error(), "$1--$2")
			fmt.Fprintf(errs, "cannot %s: %s%s; see: %s --help\n", v.actionText(), text, suggestedFlag(flags, unknown), v.Command())
			return nil, ExitUsage, false
		}
		left := flags.Args()
		if len(left) == 0 {
			break
		}
		if parsed := len(args) - len(left); v.FlagsFirst || parsed > 0 && args[parsed-1] == "--" {
			words = append(words, left...)
			break
		}
		words, args = append(words, left[0]), left[1:]
	}
	if !v.CheckArgCount(words, atLeast, atMost, errs) {
		return nil, ExitUsage, false
	}
	return words, ExitDone, true
}

// CheckArgCount reports whether the number of words is between atLeast and atMost. If it is not, CheckArgCount prints to errs
// which arguments the command expects.
func (v Verb) CheckArgCount(words []string, atLeast, atMost int, errs io.Writer) bool {
	if len(words) >= atLeast && (atMost < 0 || len(words) <= atMost) {
		return true
	}
	fmt.Fprintf(errs, "cannot %s: expected: %s\n", v.actionText(), strings.TrimSpace(v.Command()+" "+v.Args))
	return false
}

func (v Verb) actionText() string { return cmp.Or(v.Action, "run "+v.Command()) }

// Usage prints the help of the command.
func (v Verb) Usage(flags *flag.FlagSet, w io.Writer) {
	fmt.Fprintf(w, "usage: %s\n\n%s\n", strings.TrimSpace(v.Command()+" "+v.Args), v.Summary)
	if len(v.Aliases) > 0 {
		fmt.Fprintf(w, "Also: %s\n", strings.Join(v.Aliases, ", "))
	}
	if v.Help != "" {
		fmt.Fprintf(w, "\n%s\n", v.Help)
	}
	before := "\n" // an empty line precedes the first flag
	flags.VisitAll(func(f *flag.Flag) {
		name, text := flag.UnquoteUsage(f)
		fmt.Fprintf(w, "%s  %-18s %s\n", before, strings.TrimSpace(DashedFlag(f.Name)+" "+name), text)
		before = ""
	})
}

// ArgumentBounds counts the words in args, which describes the arguments of a command, as in "NAME [FILE]". It returns the minimum
// and the maximum number of words that the command accepts; a maximum of -1 means no limit. The results are for [Verb.Parse].
func ArgumentBounds(args string) (atLeast, atMost int) {
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

// DidYouMean returns the end of a message about an unknown word: it suggests the most similar known word. If no known word is
// similar, it returns "".
func DidYouMean(word string, known []string) string {
	if near := nearest.Word(word, known); near != "" && near != word {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	return ""
}

// suggestedFlag is DidYouMean for an unknown flag. If unknown is "", it returns "".
func suggestedFlag(flags *flag.FlagSet, unknown string) string {
	if unknown == "" {
		return ""
	}
	var known []string
	flags.VisitAll(func(f *flag.Flag) { known = append(known, DashedFlag(f.Name)) })
	return DidYouMean(DashedFlag(unknown), known)
}

// DashedFlag returns the name of a flag with its dashes, as people type it: -n or --json.
func DashedFlag(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// SiblingProgram returns the path of a program in the directory of this program. hinit's programs find each other in this way,
// because $PATH may be the agent's. If the file is missing, SiblingProgram returns the path and an error that wraps
// [fs.ErrNotExist].
func SiblingProgram(program string) (path string, err error) {
	self, err := os.Executable()
	path = filepath.Join(filepath.Dir(self), program)
	if err == nil {
		_, err = os.Stat(path)
	}
	return path, err
}

// HinitPath returns the path of the program hinit in the directory of this program. In a container image, this file may be called
// init, because it is the entry point.
func HinitPath() (string, error) {
	path, err := SiblingProgram("hinit")
	if errors.Is(err, fs.ErrNotExist) {
		return SiblingProgram("init")
	}
	return path, err
}

// InterruptibleContext returns a context that ends when this process receives SIGINT (Ctrl-C) or SIGTERM.
func InterruptibleContext() (context.Context, context.CancelFunc) {
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

// IsSelector reports whether an argument of a command can select several services. Such an argument is a pattern of [path.Match],
// or @ and the name of a group.
func IsSelector(word string) bool {
	return strings.HasPrefix(word, "@") || strings.ContainsAny(word, "*?[")
}

// SelectsService reports whether an argument selects the service s. The argument is either @ and the name of the service's group,
// or a pattern that matches the name of the service or of its profile.
func SelectsService(word string, s *client.Service) bool {
	if group, is := strings.CutPrefix(word, "@"); is {
		return group != "" && group == s.Group // a service without a group has the group ""
	}
	byName, _ := path.Match(word, s.Name) // an invalid pattern matches nothing
	byProfile, _ := path.Match(word, s.Profile)
	return byName || byProfile && s.Profile != ""
}

// MatchesSearch reports whether one word of a search finds the service s. A selector finds s if it selects s. Any other word
// finds s if text, a description of s, contains it; upper and lower case don't matter.
func MatchesSearch(word, text string, s *client.Service) bool {
	if IsSelector(word) {
		return SelectsService(word, s)
	}
	return strings.Contains(strings.ToLower(text), strings.ToLower(word))
}

// Env looks up an environment variable, as [os.LookupEnv] does.
type Env = func(name string) (string, bool)

// ClientForThisContainer returns a client of the PID 1 of this container. The client doesn't connect yet, see
// [dial.ForThisContainer].
func ClientForThisContainer(env Env) *dial.Client {
	return dial.ForThisContainer(configuredSocket(env), env)
}

// Dial connects to the PID 1 of this container, see [dial.Find]. Mistakes in the configuration don't matter, so that commands
// still work.
func Dial(env Env) (*dial.Client, error) { return dial.Find(configuredSocket(env), env) }

// configuredSocket returns the path of the control socket in the configuration file, or "" if the file sets none. It also returns
// "" if HINIT_RUNTIME_DIR is set, because this variable wins over the file. It parses no other key: most commands need only this
// one, and run for only two milliseconds.
func configuredSocket(env Env) string {
	if dir, _ := env("HINIT_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return ""
	}
	text := config.ReadTrustedFile(env)
	if !bytes.Contains(text, []byte("socket")) && !bytes.Contains(text, []byte(`\`)) { // in JSON, escapes with backslashes can spell the key
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

// ReadIsolatedFile returns the content of [account.IsolatedProfilesFile] beside the control socket. The hinit that listens on the
// socket has written this file. If no profile is isolated, the content is "". An abstract socket has no directory, so the result
// is an error. ReadIsolatedFile may block on the disk.
func ReadIsolatedFile(socket string) (string, error) {
	if !strings.HasPrefix(socket, "/") {
		return "", fmt.Errorf("cannot list the isolated profiles: the control socket %q has no directory; mount a tmpfs on /run", socket)
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(socket), account.IsolatedProfilesFile))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return string(text), err
}
