package volume

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"hinit/internal/boot"

	"hinit/internal/boot/kept"
	"hinit/internal/fsutil"
)

const (
	maxSeedSize = 1 << 20 // maximum size of a template or .env file in bytes; such files usually have a few kilobytes

	// envMode is the mode of .env after every boot (contract, section 2.1, steps 8 and 14).
	envMode = 0o600
)

// createExpectedFiles creates the files that the agent expects (contract, section 2.1, steps 11 to 14), as the agent's user.
func (p *bootSteps) createExpectedFiles(ctx context.Context, s *boot.Step) error {
	d, err := p.asAgent()
	if err != nil {
		return err
	}
	defer d.Close()
	if !p.linked {
		p.removeStamp(d)
	}
	var problems []error
	for _, seed := range []struct {
		name, source string
		mode         fs.FileMode // 0 means the mode of the source, without write permission for others
	}{
		{boot.EnvFile, ".env.example", envMode},
		{boot.ConfigFile, "cli-config.yaml.example", boot.ConfigMode},
		{"SOUL.md", "docker/SOUL.md", 0},
	} {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		problems = append(problems, p.createFromTemplate(s, d, seed.name, filepath.Join(p.Image.Install, seed.source), seed.mode))
	}
	if err := p.generateKey(s, d); err != nil {
		problems = append(problems, err)
	}
	p.restrictEnv(s, d)
	return errors.Join(problems...)
}

// removeStamp removes the file that records how the agent was installed. Older images have left this file in homes that they
// shared with the host (step 11).
func (p *bootSteps) removeStamp(d *fsutil.Dir) {
	data, err := d.ReadFile(boot.StampFile, 4096)
	if err == nil && string(bytes.Join(bytes.Fields(data), nil)) == "docker" {
		_ = d.Remove(boot.StampFile)
	}
}

// missing reports whether the file rel is missing and must be created. It refuses a link, unless the link leads to a regular
// file.
func (p *bootSteps) missing(s *boot.Step, d *fsutil.Dir, rel string) bool {
	info, err := d.Lstat(rel)
	if errors.Is(err, fs.ErrNotExist) {
		if p.linked {
			s.Refuse("seed", p.Path(rel))
		}
		return !p.linked
	}
	if err == nil && info.Mode()&fs.ModeSymlink != 0 {
		err := p.Agent.Do(func() error {
			target, err := os.Stat(p.Path(rel)) // resolved with the agent's identity, so that root never follows the link
			if err == nil && !target.Mode().IsRegular() {
				err = fsutil.ErrNotRegular
			}
			return err
		})
		if err != nil {
			s.Refuse("seed", p.Path(rel))
		}
	}
	return false
}

// createFromTemplate creates the file rel as a copy of the template source, if rel is missing (step 12). If mode is 0, the mode
// of the template is used, without write permission for others.
func (p *bootSteps) createFromTemplate(s *boot.Step, d *fsutil.Dir, rel, source string, mode fs.FileMode) error {
	if !p.missing(s, d, rel) {
		return nil
	}
	info, err := os.Stat(source)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxSeedSize {
		return fmt.Errorf("cannot use %q as a template for %q: it is no regular file of at most %d bytes", source, p.Path(rel), maxSeedSize)
	}
	data, err := os.ReadFile(source)
	if err != nil {
		return fmt.Errorf("cannot use %q as a template for %q: %w", source, p.Path(rel), boot.WithoutPath(err))
	}
	if mode == 0 {
		mode = info.Mode().Perm() & 0o755
	}
	return p.create(s, d, rel, data, mode)
}

func (p *bootSteps) create(s *boot.Step, d *fsutil.Dir, rel string, data []byte, mode fs.FileMode) error {
	err := d.Create(rel, data, mode)
	switch {
	case errors.Is(err, fsutil.ErrSymlink):
		s.Refuse("seed", p.Path(rel))
		return nil
	case errors.Is(err, fs.ErrExist):
		return nil // another process has created the file meanwhile
	}
	return err
}

// generateKey adds a key for the gateway's API server to .env if there is none (step 13).
func (p *bootSteps) generateKey(s *boot.Step, d *fsutil.Dir) error {
	data, err := d.ReadFile(boot.EnvFile, maxSeedSize)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, fsutil.ErrSymlink), err == nil && p.linked && !hasKey(data):
		s.Refuse("append", p.Path(boot.EnvFile))
		return nil
	case err != nil:
		return err
	case hasKey(data):
		return nil
	}
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails, see crypto/rand
	line := kept.APIKey + "=" + hex.EncodeToString(secret) + "\n"
	if err := addLine(d, data, line); err != nil {
		return err
	}
	s.Info("Generated %s for the loopback gateway api_server", kept.APIKey)
	return nil
}

// addLine appends line, an assignment of the API key, to the .env with the content data. It removes empty assignments of the key.
func addLine(d *fsutil.Dir, data []byte, line string) error {
	text := kept.WithoutKey(data)
	if len(text) > 0 && !bytes.HasSuffix(text, []byte("\n")) {
		text = append(text, '\n')
	}
	err := d.Replace(boot.EnvFile, append(text, line...), fsutil.ReplaceOptions{Mode: 0o600, KeepMode: true})
	if err == nil || errors.Is(err, fsutil.ErrSymlink) {
		return err
	}
	// If .env itself is a mount, it can be written but not replaced. So append the line: the last assignment counts.
	if len(data) > 0 && data[len(data)-1] != '\n' {
		line = "\n" + line
	}
	if _, appendErr := d.Append(boot.EnvFile, []byte(line), 0o600); appendErr != nil {
		return err
	}
	return nil
}

func hasKey(data []byte) bool {
	for line := range strings.Lines(string(data)) {
		if v, mine := kept.KeyOf(line); mine && v != "" {
			return true
		}
	}
	return false
}

// restrictEnv makes .env accessible only to its owner, at every boot (step 14).
func (p *bootSteps) restrictEnv(s *boot.Step, d *fsutil.Dir) {
	info, err := d.Lstat(boot.EnvFile)
	switch {
	case err != nil:
	case info.Mode()&fs.ModeSymlink != 0, p.linked && info.Mode().Perm() != envMode:
		s.Refuse("chown/chmod", p.Path(boot.EnvFile))
	default:
		if _, err := d.Chmod(boot.EnvFile, envMode); err != nil && !errors.Is(err, fs.ErrPermission) {
			s.Warn("%v — continuing", err)
		}
	}
}
