package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// event is one line of the output of go test -json (go doc test2json).
type event struct {
	Action, Package, Test, Output, ImportPath, FailedBuild string
	Elapsed                                                float64
}

// test identifies a test or, with an empty name, a package.
type test struct{ pkg, name string }

func (t test) String() string {
	if t.name == "" {
		return t.pkg
	}
	return t.pkg + " " + t.name
}

// counts are the numbers of tests of one package, by result.
type counts struct{ passed, skipped, failed int }

// summary collects the results of go test.
type summary struct {
	out     io.Writer
	output  map[test][]string  // Output of running tests and builds.
	running map[string]*counts // Packages that have not ended.

	packages, passed int
	skipped          map[string][]test // Skipped tests by reason.
	words            []string          // Arguments of the running call.
	failed           []failure
	unsteady         []test
	broken           []string // Calls that failed although no package failed.
	longest          []timed
}

// timed is a top-level test and its duration in seconds.
type timed struct {
	test
	seconds float64
}

// merge adds the results of another call.
func (s *summary) merge(o *summary) {
	s.packages += o.packages
	s.passed += o.passed
	s.longest = append(s.longest, o.longest...)
	s.failed, s.broken = append(s.failed, o.failed...), append(s.broken, o.broken...)
	for why, tests := range o.skipped {
		if s.skipped == nil {
			s.skipped = make(map[string][]test)
		}
		s.skipped[why] = append(s.skipped[why], tests...)
	}
}

func (s *summary) hasFailures() bool { return len(s.failed)+len(s.broken) > 0 }

// addLine handles one line of go test -json. A line that is not JSON is printed as it is.
func (s *summary) addLine(text []byte) {
	var e event
	if json.Unmarshal(text, &e) != nil || e.Action == "" {
		_, _ = s.out.Write(text)
		return
	}
	if s.output == nil {
		s.output, s.running, s.skipped = make(map[test][]string), make(map[string]*counts), make(map[string][]test)
	}
	t := test{e.Package, e.Test}
	switch e.Action {
	case "start":
		s.running[e.Package] = &counts{}
	case "output":
		s.output[t] = append(s.output[t], e.Output)
	case "build-output":
		s.output[test{pkg: e.ImportPath}] = append(s.output[test{pkg: e.ImportPath}], e.Output)
	case "pass", "skip", "fail":
		if e.Test == "" {
			s.endOfPackage(e)
			return
		}
		if !strings.Contains(e.Test, "/") {
			s.longest = append(s.longest, timed{t, e.Elapsed})
		}
		s.endTest(t, e.Action)
	}
}

// endTest records the result of a test, which action names.
func (s *summary) endTest(t test, action string) {
	c := s.running[t.pkg]
	if c == nil {
		c = &counts{}
		s.running[t.pkg] = c
	}
	switch action {
	case "pass":
		c.passed++
		s.passed++
	case "skip":
		c.skipped++
		why := skipReason(s.output[t])
		s.skipped[why] = append(s.skipped[why], t)
	case "fail":
		c.failed++
		s.failed = append(s.failed, failure{test: t, words: s.words, final: isSerious(s.output[t])})
		s.printOutput(t)
	}
	delete(s.output, t)
}

func (s *summary) printOutput(t test) {
	for _, text := range s.output[t] {
		if !strings.HasPrefix(text, "=== ") {
			_, _ = io.WriteString(s.out, text)
		}
	}
	delete(s.output, t)
}

func (s *summary) endOfPackage(e event) {
	t := test{pkg: e.Package}
	c := s.running[e.Package]
	if c == nil {
		c = &counts{}
	}
	if e.Action == "fail" {
		if e.FailedBuild != "" {
			s.printOutput(test{pkg: e.FailedBuild})
		}
		s.failUnendedTests(e.Package)
		s.printOutput(t)
		if c.failed == 0 {
			s.failed = append(s.failed, failure{test: t, final: true})
		}
	}
	delete(s.output, t)
	delete(s.running, e.Package)
	if e.Action == "skip" || c.passed+c.skipped+c.failed == 0 && e.Action == "pass" {
		return // The package has no tests, or none was selected.
	}
	s.packages++
	state := "ok  "
	if e.Action == "fail" {
		state = "FAIL"
	}
	fmt.Fprintf(s.out, "%s %-36s %7.1fs  %d passed", state, e.Package, e.Elapsed, c.passed)
	for _, n := range []struct {
		n    int
		what string
	}{{c.skipped, "skipped"}, {c.failed, "failed"}} {
		if n.n > 0 {
			fmt.Fprintf(s.out, ", %d %s", n.n, n.what)
		}
	}
	fmt.Fprintln(s.out)
}

// failUnendedTests prints the output of the tests of a package that have not ended, and counts them as failed. The package died, or was
// killed at its time limit.
func (s *summary) failUnendedTests(pkg string) {
	byName := func(a, b test) int { return cmp.Compare(a.name, b.name) }
	for _, t := range slices.SortedFunc(maps.Keys(s.output), byName) {
		if t.pkg == pkg && t.name != "" {
			s.printOutput(t)
			s.failed = append(s.failed, failure{test: t, final: true, remark: " (did not end)"})
			if c := s.running[pkg]; c != nil {
				c.failed++
			}
		}
	}
}

// failUnendedPackages counts the packages whose end go test has not reported as failed.
func (s *summary) failUnendedPackages() {
	for pkg := range s.running {
		s.failUnendedTests(pkg)
		s.printOutput(test{pkg: pkg})
		s.failed = append(s.failed, failure{test: test{pkg: pkg}, final: true, remark: " (did not end)"})
	}
	clear(s.running)
	clear(s.output)
}

// messagePlace matches the file and line at the beginning of a message of a test.
var messagePlace = regexp.MustCompile(`^\S+\.go:\d+: `)

// skipReason returns the first message of a skipped test, which is the reason. A framework may log more after it.
func skipReason(output []string) string {
	for _, text := range output {
		if text = strings.TrimSpace(text); messagePlace.MatchString(text) {
			return messagePlace.ReplaceAllString(text, "")
		}
	}
	return "no reason given"
}

// maxNames limits the skipped tests that are named for each reason, and maxLongest the longest tests that are printed.
const (
	maxNames   = 3
	maxLongest = 12
)

func (s *summary) print(took time.Duration, interrupted bool) {
	slices.SortStableFunc(s.longest, func(a, b timed) int { return cmp.Compare(b.seconds, a.seconds) })
	for _, t := range s.longest[:min(len(s.longest), maxLongest)] {
		if t.seconds > 1 {
			fmt.Fprintf(s.out, "long: %6.1fs %s\n", t.seconds, t.test)
		}
	}
	skipped := 0
	for _, tests := range s.skipped {
		skipped += len(tests)
	}
	fmt.Fprintf(s.out, "\n%d packages in %v: %d tests passed, %d were skipped, %d failed\n", s.packages, took.Round(time.Second), s.passed, skipped, len(s.failed))
	reasons := slices.SortedFunc(maps.Keys(s.skipped), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(s.skipped[b]), len(s.skipped[a])), cmp.Compare(a, b))
	})
	for _, why := range reasons {
		tests := s.skipped[why]
		names := make([]string, 0, maxNames)
		for _, t := range tests[:min(len(tests), maxNames)] {
			names = append(names, t.String())
		}
		if len(tests) > maxNames {
			names = append(names, "...")
		}
		fmt.Fprintf(s.out, "skipped %d: %s (%s)\n", len(tests), why, strings.Join(names, ", "))
	}
	for _, t := range s.unsteady {
		fmt.Fprintf(s.out, "unsteady: %s (failed beside others, passed alone)\n", t)
	}
	for _, f := range s.failed {
		fmt.Fprintf(s.out, "failed: %s%s\n", f.test, f.remark)
	}
	for _, call := range s.broken {
		fmt.Fprintf(s.out, "failed: %s\n", call)
	}
	if interrupted {
		fmt.Fprintln(s.out, "interrupted: this is not all")
	}
}
