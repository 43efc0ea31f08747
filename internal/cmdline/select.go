package cmdline

import (
	"path"
	"strings"

	"hinit/client"
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

// Finds reports whether a word of a search finds a service. A word that is a selector finds what it selects. Any other word finds
// the services whose text contains it, ignoring case.
func Finds(word, text string, s *client.Service) bool {
	if IsSelector(word) {
		return Matches(word, s)
	}
	return strings.Contains(strings.ToLower(text), strings.ToLower(word))
}
