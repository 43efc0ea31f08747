package main

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"sync"
	"time"

	"hinit/client"
	"hinit/internal/config"
	"hinit/sandbox"
	"hinit/sandbox/dockercli"
)

// profileOf returns the home and the profile of a caller: that of the gateway it descends from, as hinit knows it, else the one whose
// home it says it has. All profiles have one user, so this keeps them apart by accident only, not by force (docs/explanation/sandboxes.md).
func (h *hub) profileOf(ctx context.Context, pid int, claimed string) (home, profile string) {
	gateways := h.gateways(ctx)
	defer func() {
		if profile != "default" && home != filepath.Join(h.opts.Home, "profiles", profile) {
			home = h.opts.Home // a directory of the caller's choice is no home of ours
		}
	}()
	for at := pid; at > 1 && len(gateways) > 0; {
		if profile, is := gateways[at]; is {
			if profile == "default" {
				return h.opts.Home, profile
			}
			return filepath.Join(h.opts.Home, "profiles", profile), profile
		}
		_, parent, err := dockercli.Process(at)
		if err != nil {
			break
		}
		at = parent
	}
	opts, _, err := sandbox.FromEnv(func(name string) (string, bool) { return cmp.Or(claimed, h.opts.Home), name == "HERMES_HOME" })
	if err != nil || opts.Home == h.opts.Home {
		return h.opts.Home, "default"
	}
	return opts.Home, opts.Profile
}

// gatewaysFor is how long an answer of hinit's about its gateways is good: an agent asks for many commands in a row.
const gatewaysFor = 2 * time.Second

// gatewaysOf asks hinit, if it runs here, which process is the gateway of which profile.
func gatewaysOf(lookup func(string) (string, bool)) func(context.Context) map[int]string {
	sockets := client.Sockets(config.Socket(config.Options{Env: lookup}), lookup, os.Geteuid())
	var mu sync.Mutex
	var known map[int]string
	var at time.Time
	return func(ctx context.Context) map[int]string {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(at) < gatewaysFor {
			return known
		}
		known, at = nil, time.Now()
		cl, err := client.Dial(sockets)
		if err != nil {
			return nil
		}
		status, err := cl.Status(ctx)
		if err != nil {
			return nil
		}
		known = map[int]string{}
		for _, s := range status.Services {
			if s.Profile != "" && s.PID > 0 {
				known[s.PID] = s.Profile
			}
		}
		return known
	}
}
