package shim

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"hinit/internal/account"
	"hinit/shim/lifecycle"
)

// needsIsolation reports whether a command is for a profile that PID 1 has isolated. It returns false for a lifecycle command of
// a gateway, because such a command reads no file of a profile. An error means that the list of isolated profiles can't be read.
func (o *options) needsIsolation(argv []string) (bool, error) {
	profile := profileOf(argv[min(1, len(argv)):])
	if _, order := lifecycle.Parse(argv[min(1, len(argv)):]); order || profile == "" || o.native == "" {
		return false, nil
	}
	text, err := readTrusted(o.root + account.RuntimeDir + "/" + account.IsolatedFile)
	if errors.Is(err, unix.ENOENT) {
		return false, nil // no profile is isolated
	}
	return account.Isolates(text, profile), err
}

// profileOf returns the profile that the words after the agent's name select, or "". Words after "--" aren't flags.
func profileOf(words []string) string {
	for i, word := range words {
		if word == "--" {
			return ""
		}
		if name, joined := strings.CutPrefix(word, "--profile="); joined {
			return name
		}
		if (word == "-p" || word == "--profile") && i+1 < len(words) {
			return words[i+1]
		}
	}
	return ""
}

// execIsolated replaces the process by hinit shell, which runs the command with the user and the isolation of the profile. It
// returns only after a failure.
func (o *options) execIsolated(argv, env []string) error {
	return unix.Exec(o.native, append([]string{"hinit", "shell", profileOf(argv[1:]), "--", o.target}, argv[1:]...), env)
}
