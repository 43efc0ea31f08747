package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode"
)

// trustedPath takes out of PATH what the agent could put programs into, for what runs as root: a script of the user that
// calls "apt-get" must not get the agent's. Where everything runs as the agent anyway nothing is taken out.
func (c *container) trustedPath(env []string) []string {
	id := c.agent.user
	if os.Geteuid() != 0 || id.UID == 0 {
		return env
	}
	home := c.cfg.Load().Home
	kept := slices.DeleteFunc(filepath.SplitList(lookupIn(env, "PATH")), func(dir string) bool {
		if !filepath.IsAbs(dir) || dir == home || strings.HasPrefix(dir, home+"/") {
			return true
		}
		info, err := os.Stat(dir)
		if err != nil {
			return false // there is nothing in it
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		mode := info.Mode().Perm()
		return !ok || st.Uid == id.UID || mode&0o002 != 0 || mode&0o020 != 0 && slices.Contains(id.Groups, st.Gid)
	})
	return withEnv(env, map[string]string{"PATH": strings.Join(kept, ":")})
}

func lookupIn(env []string, name string) string {
	for _, kv := range slices.Backward(env) {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value
		}
	}
	return ""
}

// printable makes a text that may hold names chosen by the agent fit to be one line of a log or a terminal: control
// characters, line ends among them, become U+FFFD.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\t' {
			return '\uFFFD'
		}
		return r
	}, text)
}
