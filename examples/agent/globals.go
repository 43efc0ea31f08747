package main

import (
	"errors"
	"slices"
	"strings"
)

// cutProfileOption removes the profile option from the command line. The option is -p NAME, --profile NAME or --profile=NAME, at
// any place before a "--". The last one counts; profile is "" if there was none.
func cutProfileOption(args []string) (profile string, rest []string, err error) {
	for i := 0; i < len(args); i++ {
		arg := args[i]
		value, hasValue := strings.CutPrefix(arg, "--profile=")
		switch {
		case arg == "--":
			return profile, append(rest, args[i:]...), nil
		case arg == "-p", arg == "--profile":
			i++
			if i == len(args) {
				return "", nil, errors.New(arg + " needs the name of a profile")
			}
			profile = args[i]
		case hasValue:
			profile = value
		default:
			rest = append(rest, arg)
			continue
		}
		if strings.TrimSpace(profile) == "" {
			return "", nil, errors.New("the name of the profile is empty")
		}
	}
	return profile, rest, nil
}

// cutWorkerOptions removes the options that a dispatcher puts before the command of a worker. This agent doesn't use them.
func cutWorkerOptions(words []string) []string {
	for len(words) > 0 {
		switch words[0] {
		case "--accept-hooks":
			words = words[1:]
		case "--skills", "-m", "--toolsets":
			words = words[min(2, len(words)):]
		default:
			return words
		}
	}
	return words
}

func wantsHelp(args []string) bool {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	return slices.Contains(args, "--help") || slices.Contains(args, "-h")
}
