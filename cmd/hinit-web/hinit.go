package main

import (
	"os"
	"path/filepath"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/account"
	"hinit/internal/boot/lookup"
	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/usage"
)

// hinit is a client of this container's hinit, and the other sources of this program's data.
type hinit struct {
	*dial.Client
	env func(string) (string, bool)
}

func newHinit(env func(string) (string, bool)) *hinit {
	return &hinit{dial.Here(config.Socket(config.Options{Env: env}), env), env}
}

// isolates reports whether hinit has isolated profiles. It reads the list that hinit writes for the exec shim.
func (h *hinit) isolates() bool {
	if h.Reach() != nil {
		return false
	}
	info, err := os.Stat(filepath.Join(filepath.Dir(h.Socket()), account.Isolated))
	return err == nil && info.Size() > 0
}

// proc returns the path of the /proc that shows hinit's processes, or "".
func (h *hinit) proc(i client.Init) string { return usage.Root(h.Socket(), i.PID) }

// logsAs returns the identity with which this program opens hinit's log files.
func (h *hinit) logsAs(i client.Init) (*fsutil.Actor, error) {
	return lookup.LogReader(i.Plain != "", h.env)
}
