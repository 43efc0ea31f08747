package show

import (
	"path"
	"slices"
	"strings"

	"hinit/client"
)

// Chooses reports whether a word of a command stands for several services: a pattern as of path.Match, or @GROUP.
func Chooses(word string) bool {
	return strings.HasPrefix(word, "@") || strings.ContainsAny(word, "*?[")
}

// Matches reports whether a word names a service: by its name, its profile, its group, or a pattern for the first two.
func Matches(word string, s *client.Service) bool {
	if group, is := strings.CutPrefix(word, "@"); is {
		return group != "" && group == s.Group // a service without a group has the name ""
	}
	byName, _ := path.Match(word, s.Name) // a bad pattern matches nothing
	byProfile, _ := path.Match(word, s.Profile)
	return byName || byProfile && s.Profile != ""
}

// InTrouble is the word for every service that somebody has to look after, see [InState].
const InTrouble = "trouble"

// States are the words that [InState] takes.
func States() []string {
	words := append([]string{
		client.StateDown, client.StateWaiting, client.StateStarting, client.StateUp, client.StateStopping, client.StateKilling, client.StateFinishing,
		InTrouble,
	}, ProblemKinds()...)
	slices.Sort(words)
	return words
}

// InState reports whether a service is in a state, or has a problem of a kind.
func InState(word string, s *client.Service) bool {
	v := Judge(s)
	return word == s.State || slices.Contains(v.Problems, word) || word == InTrouble && v.Troubled()
}
