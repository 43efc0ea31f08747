package mux

import (
	"maps"
	"slices"
	"strings"
)

// EnvPrefix is put before the names of a command's own variables. The shell renames them after it has restored the session's
// variables, which would win otherwise. A value never stands in a command line.
const EnvPrefix = "hinit_env_"

// Script is what a shell is given to run a command in a session.
type Script struct {
	Bash    bool // the shell is bash
	State   string
	Command string
	Dir     string
	Env     map[string]string
	Exports string // file for the variables afterwards, "" for none
	Where   string // file for the working directory afterwards
}

// The files of a session, in its directory.
const (
	BaseFile    = "base.sh" // what the login shell set up: variables, functions, aliases
	ExportsFile = "env.sh"  // variables as the last command left them
	WhereFile   = "cwd"
)

// Text returns the script. Its exit code is the command's, or 126 when the directory could not be entered.
func (s Script) Text() string {
	var b strings.Builder
	if s.State != "" {
		for _, name := range []string{BaseFile, ExportsFile} { // a shell may end when what it is to read isn't there
			file := Quote(s.State + "/" + name)
			b.WriteString("[ ! -f " + file + " ] || . " + file + " >/dev/null 2>&1\n")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		b.WriteString("export " + name + "=\"$" + EnvPrefix + name + "\"; unset " + EnvPrefix + name + "\n")
	}
	cd := "cd"
	if s.Bash {
		cd = "builtin cd"
	}
	if s.Dir != "" {
		b.WriteString(cd + " -- " + QuoteDir(s.Dir) + " || exit 126\n")
	}
	b.WriteString("eval " + Quote(s.Command) + "\n")
	b.WriteString("__hinit_status=$?\n")
	if s.Exports != "" {
		b.WriteString("unset HINIT_RUN\n{ umask 077; export -p > " + Quote(s.Exports) + " && pwd -P > " + Quote(s.Where) + "; } 2>/dev/null\n")
	}
	b.WriteString("exit $__hinit_status\n")
	return b.String()
}

// Snapshot returns the script with which a login shell begins a session. It writes the shell's variables and functions to base,
// and the first directory of the session to where. Login scripts may have gone elsewhere.
func Snapshot(bash bool, dir, base, where string) string {
	var b strings.Builder
	b.WriteString("umask 077; unset HINIT_RUN\n{ export -p\n")
	if bash {
		// Functions that begin with one underscore belong to completions, and there may be thousands.
		b.WriteString("for __hinit_f in $(compgen -A function); do case $__hinit_f in _[!_]*) ;; *) declare -f \"$__hinit_f\";; esac; done\n")
		b.WriteString("alias -p\necho 'shopt -s expand_aliases'\n")
	} else {
		b.WriteString("alias | while IFS= read -r __hinit_a; do echo \"alias $__hinit_a\"; done\n")
	}
	b.WriteString("echo 'set +e'; echo 'set +u'; } > " + Quote(base) + " 2>/dev/null || exit 1\n")
	b.WriteString("cd -- " + QuoteDir(dir) + " 2>/dev/null\n")
	b.WriteString("pwd -P > " + Quote(where) + "\n")
	return b.String()
}

// Quote quotes a word for the shell.
func Quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// QuoteDir quotes a directory, in which a leading ~ means the home directory.
func QuoteDir(dir string) string {
	switch {
	case dir == "~", dir == "":
		return "~"
	case strings.HasPrefix(dir, "~/"):
		rest := strings.TrimLeft(dir[2:], "/")
		if rest == "" {
			return `"$HOME"`
		}
		return `"$HOME"/` + Quote(rest)
	}
	return Quote(dir)
}

// CommandEnv returns a command's own variables as its shell expects them.
func CommandEnv(env map[string]string) map[string]string {
	out := make(map[string]string, len(env))
	for name, value := range env {
		out[EnvPrefix+name] = value
	}
	return out
}

// ValidName reports whether a shell takes it for the name of a variable.
func ValidName(name string) bool {
	for i, c := range []byte(name) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}
