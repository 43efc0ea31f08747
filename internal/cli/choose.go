package cli

import (
	"path"
	"slices"
	"strings"

	"hinit/client"
	"hinit/internal/control/show"
)

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

// InTrouble is the word of --state for all services that need attention, see [InState].
const InTrouble = "trouble"

// ProblemKinds returns all kinds of problems that a service can have. They are also valid words for [InState].
func ProblemKinds() []string {
	return []string{
		show.ProblemFailed, show.ProblemParked, show.ProblemCrashLoop, show.ProblemBackoff, show.ProblemUnserved, show.ProblemDeaf, show.ProblemPaused, show.ProblemNotReady, show.ProblemCheck, show.ProblemOther,
	}
}

// States returns the words that [InState] accepts, sorted. They are the values of --state.
func States() []string {
	words := append([]string{
		client.StateDown, client.StateWaiting, client.StateStarting, client.StateUp, client.StateStopping, client.StateKilling, client.StateFinishing,
		InTrouble,
	}, ProblemKinds()...)
	slices.Sort(words)
	return words
}

// InState reports whether a service is in the state word, or has a problem of the kind word. [InTrouble] stands for any problem.
func InState(word string, s *client.Service) bool {
	v := show.Judge(s)
	return word == s.State || slices.Contains(v.Problems, word) || word == InTrouble && v.Troubled()
}
