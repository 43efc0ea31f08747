package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Problem is one mistake in a configuration. [Load] joins all problems into one error. The error lists the problems of the file
// by line, and then the problems of the environment. The text of a problem is a single line.
type Problem struct { //nolint:errname // the name says what it is, and the type is more than an error {
	File string // the file, or "" for a mistake in the environment
	Line int    // line in File, 0 when unknown
	Env  string // the variable, or "" for a mistake in the file
	Msg  string
}

func (p *Problem) Error() string {
	switch {
	case p.File != "" && p.Line > 0:
		return fmt.Sprintf("%s:%d: %s", p.File, p.Line, p.Msg)
	case p.File != "":
		return p.File + ": " + p.Msg
	default:
		return p.Msg
	}
}

// problems collects the mistakes of one configuration, in the order in which they are found. file is the file's path for
// messages.
type problems struct {
	file string
	list []*Problem
}

// Limits for the problems of one configuration, so that a file full of mistakes takes little memory.
const (
	maxProblems    = 200
	maxMessageSize = 2000 // maximum size of a message in bytes
)

// add records a problem. After maxProblems problems, it counts further problems but drops their text.
func (p *problems) add(one Problem) {
	if len(p.list) >= maxProblems {
		p.list = append(p.list, nil)
		return
	}
	if len(one.Msg) > maxMessageSize {
		one.Msg = one.Msg[:maxMessageSize] + "..."
	}
	p.list = append(p.list, &one)
}

func (p *problems) reportAtLine(line int, format string, args ...any) {
	p.add(Problem{File: p.file, Line: line, Msg: fmt.Sprintf(format, args...)})
}

// reportVariable records that a variable's value is invalid.
func (p *problems) reportVariable(name, value, reason string) {
	p.add(Problem{Env: name, Msg: fmt.Sprintf("cannot use %s=%q: %s", name, value, reason)})
}

// reportAtOrigin records a problem with a value at the place that set the value.
func (p *problems) reportAtOrigin(o origin, format string, args ...any) {
	if o.env != "" {
		p.add(Problem{Env: o.env, Msg: fmt.Sprintf(format, args...) + " (" + o.String() + ")"})
		return
	}
	p.reportAtLine(o.line, format, args...)
}

// err joins all problems into one error, or returns nil.
func (p *problems) err() error {
	kept := p.list[:min(len(p.list), maxProblems)]
	slices.SortStableFunc(kept, func(a, b *Problem) int {
		return cmp.Or(cmp.Compare(b.File, a.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Env, b.Env), cmp.Compare(a.Msg, b.Msg))
	})
	errs := make([]error, len(kept))
	for i, one := range kept {
		errs[i] = one
	}
	if more := len(p.list) - len(kept); more > 0 {
		errs = append(errs, fmt.Errorf("%d more problems are not shown; mend these first", more))
	}
	return errors.Join(errs...)
}

// NoServices returns the error for a plain supervisor's file without services.
func NoServices(path string) error {
	return fmt.Errorf("cannot run the services of %q: it has none; add one below the key \"services\"", path)
}
