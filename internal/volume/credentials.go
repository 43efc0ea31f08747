package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"

	"hinit/internal/boot"

	"hinit/internal/fsutil"
)

// writeBootstrapFiles writes the credentials and the desired state of the gateway from environment variables. It writes as the
// agent's user and overwrites no file (contract, section 2.1, steps 16 and 17).
func (p *bootSteps) writeBootstrapFiles(_ context.Context, s *boot.Step) error {
	state := ""
	if boot.EnvOf(p.Env, "HERMES_GATEWAY_BOOTSTRAP_STATE") == "running" {
		state = "{\"gateway_state\":\"running\"}\n"
	}
	return errors.Join(p.writeCredentials(s), p.writeIfMissing(s, "gateway_state.json", state, 0o644))
}

const authFile = "auth.json"

// writeCredentials writes the credentials from the environment into the file authFile, unless the file exists. If
// HERMES_AUTH_HOME names another directory, writeCredentials first creates that directory for the agent's user.
func (p *bootSteps) writeCredentials(s *boot.Step) error {
	secret := boot.EnvOf(p.Env, "HERMES_AUTH_JSON_BOOTSTRAP")
	base, rel, err := p.credentialsDir()
	if err != nil {
		s.Warn("%v: %s is seeded nowhere", err, authFile)
		return nil
	}
	if base != p.Home {
		d, err := p.openCredentialsDir(s, base, rel)
		if errors.Is(err, fsutil.ErrSymlink) {
			s.RefuseSymlink("credential residence creation", filepath.Join(base, rel))
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot use HERMES_AUTH_HOME=%q: %w; make the directory and give it to the agent's user", base, err)
		}
		defer d.Close()
		if secret == "" {
			return nil
		}
		return p.create(s, d, filepath.Join(rel, authFile), []byte(secret), 0o600)
	}
	return p.writeIfMissing(s, authFile, secret, 0o600)
}

// writeIfMissing creates the file name in the data directory with the given text. If the file exists or text is "", it does
// nothing.
func (p *bootSteps) writeIfMissing(s *boot.Step, name, text string, mode fs.FileMode) error {
	if text == "" {
		return nil
	}
	d, err := p.openHomeAsAgent()
	if err != nil {
		return err
	}
	defer d.Close()
	if !p.mustCreate(s, d, name) {
		return nil
	}
	return p.create(s, d, name, []byte(text), mode)
}

// credentialsDir returns the directory of the credentials: base/rel. base is the data directory, unless HERMES_AUTH_HOME names
// another directory. If HERMES_AUTH_HOME is set and the data directory is the home of a named profile, rel is profiles/NAME.
// Otherwise rel is "".
func (o Options) credentialsDir() (base, rel string, err error) {
	base, set := o.Env("HERMES_AUTH_HOME")
	if !set {
		return o.Home, "", nil
	}
	if !boot.IsCleanPath(base) {
		return "", "", fmt.Errorf("HERMES_AUTH_HOME=%q is not an absolute directory", base)
	}
	if parent, name := filepath.Split(o.Home); filepath.Base(parent) == boot.ProfilesDir {
		rel = boot.ProfilesDir + "/" + name
	}
	return filepath.Clean(base), rel, nil
}

// credentialPatterns are patterns for the names of credential files. In the directory of HERMES_AUTH_HOME, hinit gives only these
// files to the agent, because others may belong to the host.
var credentialPatterns = []string{
	authFile, "auth.lock", "auth.json.corrupt", "auth.json.tmp.*", ".anthropic_oauth.json", ".anthropic_oauth.tmp.*", "..anthropic_oauth_*.tmp",
	"nous_auth.json", "nous_auth.json.tmp.*",
}

// openCredentialsDir creates the directory base of HERMES_AUTH_HOME, and rel in it. It gives root's credential files in them to
// the agent, and follows no link. If base belongs to root and contains other files, it may be a directory of the system, and
// keeps its owner.
func (p *bootSteps) openCredentialsDir(s *boot.Step, base, rel string) (*fsutil.Dir, error) {
	made, _, err := fsutil.MakeNoLink(base, 0o700, p.Agent)
	if err == nil {
		made.Close()
	}
	if p.Agent.SwitchesIdentity() {
		top, _, err := fsutil.MakeNoLink(base, 0o755, nil)
		if err != nil {
			return nil, err
		}
		defer top.Close()
		info, err := top.Lstat("")
		if err != nil {
			return nil, err
		}
		if found := p.chownCredentials(s, top, ""); fsutil.UID(info) != 0 || found || top.CheckExists("shared") == nil || top.CheckExists(boot.ProfilesDir) == nil {
			p.chownRootFileToAgent(s, top, "")
			dirs := []string{"shared", boot.ProfilesDir}
			profiles, _, _ := top.ReadAtMost(boot.ProfilesDir, fsutil.MaxDirNames)
			for _, e := range profiles {
				dirs = append(dirs, boot.ProfilesDir+"/"+e.Name())
			}
			for _, dir := range dirs {
				p.chownCredentials(s, top, dir)
				p.chownRootFileToAgent(s, top, dir)
			}
		}
	}
	d, err := fsutil.OpenNoLink(base, p.Agent)
	if err != nil || rel == "" {
		return d, err
	}
	if err := d.Mkdir(rel, 0o700); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// chownCredentials gives root's credential files in the directory dir to the agent. found is true if dir contains credential
// files or is empty.
func (p *bootSteps) chownCredentials(s *boot.Step, top *fsutil.Dir, dir string) (found bool) {
	entries, _, err := top.ReadAtMost(dir, fsutil.MaxDirNames)
	found = err == nil && len(entries) == 0
	for _, e := range entries {
		known := slices.ContainsFunc(credentialPatterns, func(pattern string) bool {
			match, err := path.Match(pattern, e.Name())
			return err == nil && match
		})
		if known && e.Type().IsRegular() {
			found = true
			p.chownRootFileToAgent(s, top, path.Join(dir, e.Name()))
		}
	}
	return found
}

func (p *bootSteps) chownRootFileToAgent(s *boot.Step, in *fsutil.Dir, rel string) {
	info, err := in.Lstat(rel)
	if err != nil || fsutil.UID(info) != 0 {
		return
	}
	_, _, err = in.Chown(rel, p.Owner())
	s.ReportChown(p.Home, filepath.Join(in.Path(), rel), err)
}

// RebootstrapHook returns the hook that writes existing credentials again from the environment, as HERMES_AUTH_JSON_REBOOTSTRAP
// requests (contract, section 2.1, step 16). The hook runs after the configured hooks. The second result is false without such
// a request.
func RebootstrapHook(o Options) (boot.Hook, bool) {
	o = o.withDefaults()
	script := filepath.Join(o.Image.Install, "scripts/docker_rebootstrap_nous_session.py")
	base, rel, err := o.credentialsDir()
	if err != nil || boot.EnvOf(o.Env, "HERMES_AUTH_JSON_REBOOTSTRAP") == "" {
		return boot.Hook{}, false
	}
	if info, err := fsutil.WithParentDir(filepath.Join(base, rel, authFile), o.Agent, (*fsutil.Dir).Lstat); err != nil || !info.Mode().IsRegular() {
		return boot.Hook{}, false
	}
	return boot.Hook{
		Name: filepath.Base(script), Command: []string{filepath.Join(o.Image.Install, ".venv/bin/python"), script, filepath.Join(base, rel, authFile)},
		Timeout: rebootstrapTimeout, IfExists: script,
	}, true
}
