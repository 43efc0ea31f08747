package volume

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hinit/internal/boot"
	"hinit/internal/boot/kept"
	"hinit/internal/fsutil"
	"hinit/internal/lease"
)

const (
	maxSeedSize = 1 << 20 // maximum size of a template or .env file in bytes; most have a few kilobytes

	// envMode is the mode of .env after every boot (contract, section 2.1, steps 8 and 14).
	envMode = 0o600
)

// createExpectedFiles creates the files that the agent expects, as the agent's user (contract, section 2.1, steps 11 to 14).
func (p *bootSteps) createExpectedFiles(ctx context.Context, s *boot.Step) error {
	d, err := p.openHomeAsAgent()
	if err != nil {
		return err
	}
	defer d.Close()
	if !p.homeIsLink {
		p.removeStamp(d)
	}
	var problems []error
	for _, seed := range []struct {
		name, source string
		mode         fs.FileMode // mode of the new file; 0: the mode of the source, without write permission for others
	}{
		{boot.EnvFile, ".env.example", envMode},
		{boot.ConfigFile, "cli-config.yaml.example", boot.ConfigFileMode},
		{"SOUL.md", "docker/SOUL.md", 0},
	} {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		problems = append(problems, p.createFromTemplate(s, d, seed.name, filepath.Join(p.Image.Install, seed.source), seed.mode))
	}
	problems = append(problems, p.generateKey(s, d))
	p.restrictEnv(s, d)
	return errors.Join(problems...)
}

// removeStamp removes the file that records how the agent was installed. Older images left it in homes that they shared with
// the host (step 11).
func (p *bootSteps) removeStamp(d *fsutil.Dir) {
	data, err := d.ReadFile(boot.InstallMethodFile, 4096)
	if err == nil && string(bytes.Join(bytes.Fields(data), nil)) == "docker" {
		_ = d.Remove(boot.InstallMethodFile)
	}
}

// mustCreate reports whether the file rel is missing and must be created. It logs that hinit refuses a link that doesn't lead
// to a regular file.
func (p *bootSteps) mustCreate(s *boot.Step, d *fsutil.Dir, rel string) bool {
	info, err := d.Lstat(rel)
	if errors.Is(err, fs.ErrNotExist) {
		if p.homeIsLink {
			s.RefuseSymlink("seed", p.HomePath(rel))
		}
		return !p.homeIsLink
	}
	if err == nil && info.Mode()&fs.ModeSymlink != 0 {
		err := p.Agent.Do(func() error {
			target, err := os.Stat(p.HomePath(rel)) // with the agent's identity, so that root never follows the link
			if err == nil && !target.Mode().IsRegular() {
				err = fsutil.ErrNotRegular
			}
			return err
		})
		if err != nil {
			s.RefuseSymlink("seed", p.HomePath(rel))
		}
	}
	return false
}

// createFromTemplate creates the file rel as a copy of the template source, if rel is missing (step 12). A mode of 0 means
// the mode of the template, without write permission for others.
func (p *bootSteps) createFromTemplate(s *boot.Step, d *fsutil.Dir, rel, source string, mode fs.FileMode) error {
	if !p.mustCreate(s, d, rel) {
		return nil
	}
	info, err := os.Stat(source)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxSeedSize {
		return fmt.Errorf("cannot use %q as a template for %q: it is no regular file of at most %d bytes", source, p.HomePath(rel), maxSeedSize)
	}
	data, err := os.ReadFile(source)
	if err != nil {
		return fmt.Errorf("cannot use %q as a template for %q: %w", source, p.HomePath(rel), boot.WithoutPath(err))
	}
	return p.create(s, d, rel, data, cmp.Or(mode, info.Mode().Perm()&0o755))
}

// create creates the file rel, unless it exists. It reports an existing link and keeps it, because the agent may have made it.
func (p *bootSteps) create(s *boot.Step, d *fsutil.Dir, rel string, data []byte, mode fs.FileMode) error {
	err := d.Create(rel, data, mode)
	switch {
	case errors.Is(err, fsutil.ErrSymlink):
		s.RefuseSymlink("seed", p.HomePath(rel))
		return nil
	case errors.Is(err, fs.ErrExist):
		return nil // another process has created the file since the check
	}
	return err
}

// generateKey adds a key for the gateway's API server to .env, if the file has none (step 13).
func (p *bootSteps) generateKey(s *boot.Step, d *fsutil.Dir) error {
	data, err := d.ReadFile(boot.EnvFile, maxSeedSize)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && hasKey(data):
		return nil
	case errors.Is(err, fsutil.ErrSymlink), err == nil && p.homeIsLink:
		s.RefuseSymlink("append", p.HomePath(boot.EnvFile))
		return nil
	case err != nil:
		return err
	}
	secret := make([]byte, 32)
	_, _ = rand.Read(secret)
	line := kept.APIKeyVar + "=" + hex.EncodeToString(secret) + "\n"
	if err := addLine(d, data, line); err != nil {
		return err
	}
	s.Info("Generated %s for the loopback gateway api_server", kept.APIKeyVar)
	return nil
}

// addLine adds line, an assignment of the API key, to the end of .env, and removes empty assignments of the key. data is the
// present content of .env.
func addLine(d *fsutil.Dir, data []byte, line string) error {
	text := kept.WithoutGeneratedKey(data)
	if len(text) > 0 && !bytes.HasSuffix(text, []byte("\n")) {
		text = append(text, '\n')
	}
	err := d.Replace(boot.EnvFile, append(text, line...), fsutil.ReplaceOptions{Mode: 0o600, KeepMode: true})
	if err == nil || errors.Is(err, fsutil.ErrSymlink) {
		return err
	}
	// An .env that is a mount can be written but not replaced. Append the line, because the last assignment counts.
	if len(data) > 0 && data[len(data)-1] != '\n' {
		line = "\n" + line
	}
	if appendErr := d.Append(boot.EnvFile, []byte(line), 0o600); appendErr != nil {
		return err
	}
	return nil
}

func hasKey(data []byte) bool {
	for line := range strings.Lines(string(data)) {
		if v, mine := kept.GeneratedKey(line); mine && v != "" {
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
	case info.Mode()&fs.ModeSymlink != 0, p.homeIsLink && info.Mode().Perm() != envMode:
		s.RefuseSymlink("chown/chmod", p.HomePath(boot.EnvFile))
	default:
		if err := d.Chmod(boot.EnvFile, envMode); err != nil && !errors.Is(err, fs.ErrPermission) {
			s.Warn("%v — continuing", err)
		}
	}
}

const (
	// The seed is the set of files that the image provides for an empty data directory. The boot copies it to the directory
	// partialSeedDir of the volume, renames the complete copy to completeSeedDir, and moves the files to their places. After an
	// interruption, a boot that finds partialSeedDir starts the copy again, and a boot that finds completeSeedDir moves the
	// remaining files.
	partialSeedDir  = ".hinit-seed.new"
	completeSeedDir = ".hinit-seed"
	// seedChunk is the approximate number of bytes of the seed that are read into memory at a time. A larger file is read in
	// one piece.
	seedChunk = 1 << 20
)

// namesInEmptyVolume are names in a data directory that still counts as empty. The file system, the lease and an interrupted boot
// create them.
var namesInEmptyVolume = []string{kept.LostAndFound, lease.DirName, boot.RepairPendingFile, partialSeedDir}

// copySeed copies the seed to the data directory if it is empty. It works as the agent's user, and sets the modes that the files
// have in the image.
func (p *bootSteps) copySeed(ctx context.Context, s *boot.Step) error {
	d, err := p.openHomeAsAgent()
	if err != nil {
		return err
	}
	defer d.Close()
	empty, grown := true, false
	err = d.EachName("", func(name string, kind fs.FileMode) bool {
		grown = name == completeSeedDir && kind.IsDir()
		empty = empty && slices.Contains(namesInEmptyVolume, name)
		return !grown
	})
	if err != nil || !empty && !grown {
		return err
	}
	err = d.WithIdentity(func(d *fsutil.Dir) error {
		if !grown {
			if err := p.unpackSeed(ctx, d); err != nil {
				return err
			}
		}
		return moveSeed(d)
	})
	if err != nil {
		return fmt.Errorf("cannot fill %q with what the image keeps for an empty one, so the boot steps have to: %w", p.Home, err)
	}
	s.FilledFromImage = true
	return nil
}

// unpackSeed copies the seed from the image to completeSeedDir.
func (p *bootSteps) unpackSeed(ctx context.Context, d *fsutil.Dir) error {
	k, err := kept.ReadIndex(p.Image.Seed)
	if err != nil {
		return err
	}
	data, err := os.Open(p.Image.Seed)
	if err != nil {
		return err
	}
	defer data.Close()
	if err := errors.Join(d.RemoveAll(partialSeedDir), d.Mkdir(partialSeedDir, 0o700)); err != nil {
		return err
	}
	to, err := d.OpenSubdir(partialSeedDir)
	if err != nil {
		return err
	}
	defer to.Close()
	var buf []byte
	for files := k.Files; len(files) > 0 && ctx.Err() == nil; {
		var nodes []fsutil.TreeNode
		size := 0
		for _, f := range files {
			if size += f.Size; size > seedChunk && len(nodes) > 0 {
				size -= f.Size
				break
			}
			nodes = append(nodes, fsutil.TreeNode{Name: f.Name, Mode: f.Mode, SpreadSubdirs: f.Name == "skills"})
		}
		buf = slices.Grow(buf[:0], size)[:size]
		if _, err := io.ReadFull(data, buf); err != nil {
			return fmt.Errorf("cannot read %q: %w", p.Image.Seed, err)
		}
		rest := buf
		for i := range nodes {
			nodes[i].Data, rest = rest[:files[i].Size], rest[files[i].Size:]
		}
		if err := to.AddNodes(nodes); err != nil {
			return err
		}
		files = files[len(nodes):]
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return d.Rename(partialSeedDir, completeSeedDir)
}

// moveSeed moves the files in completeSeedDir to the data directory, and keeps files that exist there. Then it removes
// completeSeedDir.
func moveSeed(d *fsutil.Dir) error {
	entries, err := d.ReadDir(completeSeedDir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		err := d.CheckExists(e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			err = d.Rename(completeSeedDir+"/"+e.Name(), e.Name())
		}
		if err != nil {
			return err
		}
	}
	return d.RemoveAll(completeSeedDir)
}

// syncTree writes the whole file system of path to the disk (syncfs(2)). If the machine crashes before syncTree returns, the
// copied files may be incomplete.
func syncTree(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(fd), unix.Close(fd))
}
