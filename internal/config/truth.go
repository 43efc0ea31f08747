package config

import "strings"

// Truthy3 reports whether s is 1, true or yes, compared without regard to case. This is how the agent's command line reads
// switches such as HERMES_GATEWAY_NO_SUPERVISE.
func Truthy3(s string) bool {
	switch strings.ToLower(s) {
	case "1", "true", "yes":
		return true
	}
	return false
}

// ShellTruthy reports whether s is exactly one of 1, true, TRUE, True, yes, YES and Yes. This is how the image's shell
// scripts read switches such as HERMES_DASHBOARD: "tRuE" and "on" are false.
func ShellTruthy(s string) bool {
	switch s {
	case "1", "true", "TRUE", "True", "yes", "YES", "Yes":
		return true
	}
	return false
}

// PlainlyFalse reports whether s is a word that somebody writes to switch a thing off. A value that is neither true nor
// plainly false deserves a warning.
func PlainlyFalse(s string) bool {
	switch strings.ToLower(s) {
	case "", "0", "false", "no", "off", "n", "f":
		return true
	}
	return false
}
