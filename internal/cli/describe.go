package cli

import (
	"flag"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	"hinit/internal/cmdline"
)

// described is what the verb table says of a verb, for completion and for man pages.
type described struct {
	verb
	flags []describedFlag
	words []string // that may come first, such as check and schema
	names bool     // it takes names of services and profiles
	files bool     // it takes files
}

// describedFlag is one flag.
type describedFlag struct {
	name  string // with its dashes
	value string // name of its value, "" for none
	usage string
	words []string // that its value may be; nil for anything
}

// choice is a value of a flag that is one of a few words.
type choice interface{ choices() []string }

var firstWords = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\[?([a-z]+(?: \[[A-Z]+\])?(?: ?\| ?[a-z]+)*)\b`) })

// describe asks a verb for its flags, without carrying it out: each verb answers --help before it does anything.
func describe(v verb) described {
	d := described{verb: v, names: strings.Contains(v.args, "NAME"), files: strings.Contains(v.args, "FILE")}
	if v.outside {
		return d
	}
	c := newCall(v, []string{"--help"})
	v.run(&terminal{in: os.Stdin, out: io.Discard, err: io.Discard, env: func(string) (string, bool) { return "", false }}, c)
	c.flags.VisitAll(func(f *flag.Flag) {
		value, usage := flag.UnquoteUsage(f)
		one := describedFlag{name: cmdline.Dashed(f.Name), value: value, usage: usage}
		if few, ok := f.Value.(choice); ok {
			one.words = few.choices()
		}
		d.flags = append(d.flags, one)
	})
	slices.SortFunc(d.flags, func(a, b describedFlag) int {
		return strings.Compare(strings.TrimLeft(a.name, "-"), strings.TrimLeft(b.name, "-"))
	})
	if m := firstWords().FindStringSubmatch(v.args); m != nil {
		for word := range strings.SplitSeq(m[1], "|") {
			word, _, _ = strings.Cut(strings.TrimSpace(word), " ")
			d.words = append(d.words, word)
		}
	}
	return d
}

// find returns the flag that a word begins, and the value that it has in the same word.
func (d described) find(word string) (f describedFlag, value string, known bool) {
	if !strings.HasPrefix(word, "-") {
		return f, "", false
	}
	name, value, _ := strings.Cut(word, "=")
	for _, f := range d.flags {
		if strings.TrimLeft(f.name, "-") == strings.TrimLeft(name, "-") {
			return f, value, true
		}
	}
	return f, "", false
}
