package applet

import (
	"regexp"
	"strconv"
	"strings"
)

const (
	// lineLimit is the default of option -l, the length above which lines are split. minLineLimit is the smallest value of this
	// option.
	lineLimit    = 8192
	minLineLimit = 48
	// minSize is the smallest size at which a log file is rotated.
	minSize = 4096
)

// scriptStep is one step of a logging script. A step either selects lines, or prints or stores the selected lines.
type scriptStep struct {
	action byte
	match  *regexp.Regexp
	stamp  stampKind
	label  string // text between the time and the line
	dir    dirRules
	logDir *logDir // the open directory; nil before
}

type stampKind struct{ tai64n, local bool }

type dirRules struct {
	path              string
	maxArchives       uint64 // number of archives to keep
	rotateSize        uint64 // a file is rotated when it is larger than size minus tolerance
	tolerance         uint64
	maxArchiveBytes   uint64 // largest size of all archives together; 0: no limit
	retryMilliseconds uint64 // milliseconds from an error to the next attempt
}

// parseScript parses a logging script. If the script is invalid, problem is the message of s6-log about the first invalid
// directive.
func parseScript(words []string) (steps []scriptStep, problem string) {
	rules := dirRules{maxArchives: 10, rotateSize: 99_999, tolerance: 2000, retryMilliseconds: 2000}
	var stamp stampKind
	label, acts := "", false
	for _, word := range words {
		if word == "" {
			return nil, "unrecognized directive: "
		}
		kind, value := word[0], word[1:]
		switch kind {
		case '+', '-':
			match, err := regexp.CompilePOSIX(value)
			if err != nil {
				return nil, "unrecognized directive: " + word
			}
			steps = append(steps, scriptStep{action: kind, match: match})
		case 'f', 't', 'T', '1', '2':
			if value != "" {
				return nil, "syntax error at directive: " + word
			}
			switch kind {
			case 'f':
				steps = append(steps, scriptStep{action: 'f'})
			case 't':
				stamp.tai64n = true
			case 'T':
				stamp.local = true
			default:
				steps = append(steps, scriptStep{action: kind, stamp: stamp, label: label})
				stamp, acts = stampKind{}, true
			}
		case 'p': // 'p' applies to all later actions
			if label = value; label != "" {
				label += " "
			}
		case 'n', 's', 'S', 'l', 'r':
			if problem := rules.parseDirective(kind, value, word); problem != "" {
				return nil, problem
			}
		case '/', '.':
			rules.path = word
			steps = append(steps, scriptStep{action: '/', stamp: stamp, label: label, dir: rules})
			stamp, acts = stampKind{}, true
		case '!', '=':
			return nil, "this s6-log has no processors and no status files: " + word
		default:
			return nil, "unrecognized directive: " + word
		}
	}
	if !acts {
		return nil, "no action directive specified"
	}
	return steps, ""
}

// stepsWithoutAction returns the number of steps at the end of a script that no action follows.
func stepsWithoutAction(steps []scriptStep) int {
	n := len(steps)
	for n > 0 && strings.IndexByte("+-f", steps[n-1].action) >= 0 {
		n--
	}
	return len(steps) - n
}

// parseDirective parses a directive with a number. The directive applies to all later directories in the script.
func (r *dirRules) parseDirective(kind byte, value, word string) (problem string) {
	n, err := strconv.ParseUint(value, 10, 32)
	if err != nil || strings.HasPrefix(value, "+") {
		return "unrecognized directive: " + word
	}
	switch kind {
	case 'n':
		r.maxArchives = n
	case 's':
		r.rotateSize = max(n, minSize)
		r.tolerance = min(r.tolerance, r.rotateSize/2)
	case 'S':
		r.maxArchiveBytes = n
	case 'l':
		if n > r.rotateSize/2 {
			return "directive " + word + " conflicts with previous s directive"
		}
		r.tolerance = n
	case 'r':
		r.retryMilliseconds = n
	}
	return ""
}
