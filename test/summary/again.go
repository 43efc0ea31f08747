package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"hinit/internal/testkit"
)

// failure is a test, or a whole package, that failed.
type failure struct {
	test
	words  []string // Arguments of the go test that ran it.
	remark string   // Remark for the summary.
	final  bool     // Whether the test must not run again.
}

// isSerious reports whether the output of a failed test shows more than a timeout on a busy machine. That is a panic, a data race,
// or a broken promise, which the test itself marks by [testkit.SeriousPrefix].
func isSerious(output []string) bool {
	return slices.ContainsFunc(output, func(text string) bool {
		return strings.Contains(text, ": "+testkit.SeriousPrefix) || strings.HasPrefix(text, "panic: ") || strings.HasPrefix(text, "fatal error: ") || strings.Contains(text, "DATA RACE") ||
			strings.Contains(text, "race detected during execution")
	})
}

// runAgain runs the failed tests once more, each alone, if there are at most r.again and none is final. It moves those that pass
// to s.unsteady.
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
		err := r.runCall(one, f.callAlone())
		r.mu.Lock()
		interrupted := r.interrupted
		r.mu.Unlock()
		if interrupted {
			return
		}
		if err == nil && !one.hasFailures() && one.passed > 0 {
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

// rootPackage is the package at the root of the module. Its name has no slash, so it could be taken for the value of a flag.
const rootPackage = "hinit"

// callAlone returns the arguments of a go test that runs only this test: the flags of the first one, without its packages.
func (f *failure) callAlone() []string {
	var words []string
	for i := 0; i < len(f.words); i++ {
		switch w := f.words[i]; {
		case w == "-run":
			i++
		case !strings.HasPrefix(w, ".") && !strings.Contains(w, "/") && w != rootPackage:
			words = append(words, w)
		}
	}
	parts := strings.Split(f.name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return append(words, "-count=1", "-run", strings.Join(parts, "/"), f.pkg)
}
