// Package cmdline is what the command lines of hinit's programs have in common: exit codes, flags that may stand anywhere, help,
// and messages for wrong words. It owns no goroutine but the one of [signal.NotifyContext] in [Interruptible].
package cmdline

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"syscall"

	"hinit/internal/config"
)

// The exit codes of every command.
const (
	Done        = 0
	Failed      = 1
	WrongUsage  = 2
	NotUp       = 3 // a named service is not up
	Unreachable = 4 // no hinit answers
	NotAllowed  = 5
	Unknown     = 6 // no such profile or service
)

// Verb is what help and messages say of one command.
type Verb struct {
	Program       string // what stands before the name: "hinit", "hinit kanban"
	Name, Args    string
	Summary, Help string
	Doing         string   // completes "cannot …"; "run PROGRAM NAME" where it is empty
	Aliases       []string // other names of the command
}

// Command is the verb as people type it, without its arguments.
func (v Verb) Command() string { return strings.TrimSpace(v.Program + " " + v.Name) }

// Flags returns an empty set of flags for a verb. It prints nothing by itself.
func Flags(name string) *flag.FlagSet {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	return flags
}

// Parse reads flags, which may stand anywhere before a lone "--", and returns the other words. atMost -1 allows any number of them.
// ok is false when the command ends here with code: Parse has then printed help to out, or what is wrong to errs.
func (v Verb) Parse(flags *flag.FlagSet, args []string, atLeast, atMost int, out, errs io.Writer) (words []string, code int, ok bool) {
	doing := v.Doing
	if doing == "" {
		doing = "run " + v.Command()
	}
	for len(args) > 0 {
		if err := flags.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				v.Usage(flags, out)
				return nil, Done, false
			}
			fmt.Fprintf(errs, "cannot %s: %v%s; see: %s --help\n", doing, err, flagMeant(flags, err), v.Command())
			return nil, WrongUsage, false
		}
		left := flags.Args()
		if len(left) == 0 {
			break
		}
		if parsed := len(args) - len(left); parsed > 0 && args[parsed-1] == "--" {
			words = append(words, left...)
			break
		}
		words, args = append(words, left[0]), left[1:]
	}
	if len(words) < atLeast || atMost >= 0 && len(words) > atMost {
		fmt.Fprintf(errs, "cannot %s: expected: %s\n", doing, strings.TrimSpace(v.Command()+" "+v.Args))
		return nil, WrongUsage, false
	}
	return words, 0, true
}

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

// DidYouMean is the end of a message about an unknown word. It is empty when none of the known words is near.
func DidYouMean(word string, known []string) string {
	if near := config.Nearest(word, known); near != "" && near != word {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	return ""
}

// flagMeant is DidYouMean for a flag that package flag does not know.
func flagMeant(flags *flag.FlagSet, err error) string {
	_, word, unknown := strings.Cut(err.Error(), "flag provided but not defined: ")
	if !unknown {
		return ""
	}
	var known []string
	flags.VisitAll(func(f *flag.Flag) { known = append(known, Dashed(f.Name)) })
	return DidYouMean(Dashed(strings.TrimLeft(word, "-")), known)
}

// Dashed is a flag as people type it.
func Dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// Interruptible returns a context that ends with Ctrl-C or SIGTERM.
func Interruptible() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
}
