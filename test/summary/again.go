package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"hinit/internal/testkit"
)

// failure is a test that failed.
type failure struct {
	test
	words []string // of its go test
	how   string   // said behind its name
	final bool     // it is not run again
}

// serious says whether what a failed test has said is more than a look that came too late. A test marks a broken promise itself.
func serious(output []string) bool {
	return slices.ContainsFunc(output, func(text string) bool {
		return strings.Contains(text, ": "+testkit.Serious) || strings.HasPrefix(text, "panic: ") || strings.HasPrefix(text, "fatal error: ") || strings.Contains(text, "DATA RACE") ||
			strings.Contains(text, "race detected during execution")
	})
}

// runAgain runs what failed once more, each test alone, if that is at most a number of tests and none of them is serious.
func (r *runner) runAgain(s *summary) {
	var alone []failure
	for _, f := range s.failed {
		if f.final {
			return
		}
		inside := func(other failure) bool { return other.pkg == f.pkg && strings.HasPrefix(other.name, f.name+"/") }
		if !slices.ContainsFunc(s.failed, inside) {
			alone = append(alone, f)
		}
	}
	if len(alone) > r.again {
		return
	}
	for _, f := range alone {
		fmt.Fprintf(s.out, "again, alone: %s\n", f.test)
		one := &summary{out: s.out}
		err := r.call(one, f.callAlone())
		r.mu.Lock()
		interrupted := r.interrupted
		r.mu.Unlock()
		if interrupted {
			return
		}
		if err == nil && !one.bad() && one.passed > 0 {
			s.unsteady = append(s.unsteady, f.test)
		}
	}
	s.failed = slices.DeleteFunc(s.failed, func(f failure) bool {
		within := func(t test) bool {
			return t.pkg == f.pkg && (t.name == f.name || strings.HasPrefix(t.name, f.name+"/"))
		}
		bad := slices.ContainsFunc(alone, func(a failure) bool { return within(a.test) && !slices.Contains(s.unsteady, a.test) })
		return !bad && slices.ContainsFunc(s.unsteady, within)
	})
}

// root is the package at the root of the module, whose name looks like a flag's value.
const root = "hinit"

// callAlone are the words of the go test that runs this test only: the flags of the first one, without its packages.
func (f *failure) callAlone() []string {
	var words []string
	for i := 0; i < len(f.words); i++ {
		switch w := f.words[i]; {
		case w == "-run":
			i++
		case !strings.HasPrefix(w, ".") && !strings.Contains(w, "/") && w != root:
			words = append(words, w)
		}
	}
	parts := strings.Split(f.name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return append(words, "-count=1", "-run", strings.Join(parts, "/"), f.pkg)
}
