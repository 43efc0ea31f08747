package boot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"hinit/internal/fsutil"
)

// bootstrap writes credentials and the gateway's intent from the environment to a new volume, as the agent's user (steps 16 and
// 17). It overwrites nothing.
func (p *preparer) bootstrap(_ context.Context, s *step) error {
	return errors.Join(p.authBootstrap(s), p.stateBootstrap(s))
}

const authFile = "auth.json"

func (p *preparer) authBootstrap(s *step) error {
	secret := value(p.Env, "HERMES_AUTH_JSON_BOOTSTRAP")
	if secret == "" {
		return nil
	}
	elsewhere, set := p.Env("HERMES_AUTH_HOME")
	if !set {
		d, err := p.asAgent()
		if err != nil {
			return err
		}
		defer d.Close()
		if !p.missing(s, d, authFile) {
			return nil
		}
		return p.create(s, d, authFile, []byte(secret), 0o600)
	}
	if !plainPath(elsewhere) {
		s.warn("HERMES_AUTH_HOME=%q is not an absolute directory: %s is seeded nowhere", elsewhere, authFile)
		return nil
	}
	return p.authElsewhere(s, filepath.Clean(elsewhere), secret)
}

// authElsewhere seeds the credentials in the directory that HERMES_AUTH_HOME names. The home of a named profile has its own place
// there.
func (p *preparer) authElsewhere(s *step, dir, secret string) error {
	if parent, name := filepath.Split(p.Home); filepath.Base(parent) == profilesName {
		dir = filepath.Join(dir, profilesName, name)
	}
	path := filepath.Join(dir, authFile)
	d, _, err := fsutil.MakeReal(dir, 0o700, p.Agent)
	if errors.Is(err, fsutil.ErrSymlink) {
		s.refuse("seed", path)
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot seed %q: %w; make the directory and give it to the agent's user", path, err)
	}
	defer d.Close()
	err = d.Create(authFile, []byte(secret), 0o600)
	switch {
	case errors.Is(err, fsutil.ErrSymlink):
		s.refuse("seed", path)
		return nil
	case errors.Is(err, fs.ErrExist):
		return nil
	}
	return err
}

func (p *preparer) stateBootstrap(s *step) error {
	if value(p.Env, "HERMES_GATEWAY_BOOTSTRAP_STATE") != "running" {
		return nil
	}
	const name = "gateway_state.json"
	d, err := p.asAgent()
	if err != nil {
		return err
	}
	defer d.Close()
	if !p.missing(s, d, name) {
		return nil
	}
	return p.create(s, d, name, []byte("{\"gateway_state\":\"running\"}\n"), 0o644)
}

// RebootstrapHook returns the command that renews existing credentials from the environment, if HERMES_AUTH_JSON_REBOOTSTRAP asks
// for it (contract, section 2.1, step 16). It runs after the configured hooks.
func RebootstrapHook(o Options) (Hook, bool) {
	if value(o.Env, "HERMES_AUTH_JSON_REBOOTSTRAP") == "" {
		return Hook{}, false
	}
	o = o.withDefaults()
	script := filepath.Join(o.Install, "scripts/docker_rebootstrap_nous_session.py")
	file := filepath.Join(cmp.Or(value(o.Env, "HERMES_AUTH_HOME"), o.Home), authFile)
	if info, err := os.Lstat(file); err != nil || !info.Mode().IsRegular() {
		return Hook{}, false
	}
	return Hook{
		Name: filepath.Base(script), Command: []string{filepath.Join(o.Install, ".venv/bin/python"), script, file},
		Timeout: rebootstrapTimeout, IfExists: script,
	}, true
}
