package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"hinit/internal/boot"
	"hinit/internal/boot/kept"
	"hinit/internal/fsutil"
	"hinit/internal/lease"
)

const (
	// The seed is the set of files that the image provides for an empty data directory. It is first copied to the directory
	// seedGrowing of the volume. When the copy is complete, it is renamed to completeSeedDir, and its files are moved to their
	// places. A boot that finds seedGrowing starts the copy again. A boot that finds completeSeedDir moves the remaining files.
	seedGrowing     = ".hinit-seed.new"
	completeSeedDir = ".hinit-seed"
	// seedChunk is the approximate number of bytes of the seed that are read into memory at a time. A larger file is read in
	// one piece.
	seedChunk = 1 << 20
)

// namesInEmptyVolume are names that may exist in a data directory that still counts as empty. The file system, the lease and an
// interrupted boot create them.
var namesInEmptyVolume = []string{kept.LostAndFound, lease.DirName, boot.PendingFile, seedGrowing}

// copySeed copies the seed to the data directory if it is empty. It works as the agent's user and sets the file modes of the
// image.
func (p *bootSteps) copySeed(ctx context.Context, s *boot.Step) error {
	d, err := p.asAgent()
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
	k, err := kept.Read(p.Image.Seed)
	if err != nil {
		return err
	}
	data, err := os.Open(p.Image.Seed)
	if err != nil {
		return err
	}
	defer data.Close()
	if err := errors.Join(d.RemoveAll(seedGrowing), d.Mkdir(seedGrowing, 0o700)); err != nil {
		return err
	}
	to, err := d.Sub(seedGrowing)
	if err != nil {
		return err
	}
	defer to.Close()
	var buf []byte
	for files := k.Files; len(files) > 0 && ctx.Err() == nil; {
		var nodes []fsutil.Node
		size := 0
		for _, f := range files {
			if size += f.Size; size > seedChunk && len(nodes) > 0 {
				size -= f.Size
				break
			}
			nodes = append(nodes, fsutil.Node{Name: f.Name, Mode: f.Mode, Spread: f.Name == "skills"})
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
	return d.Rename(seedGrowing, completeSeedDir)
}

// moveSeed moves the files in completeSeedDir to the data directory, where existing files are kept. Then it removes
// completeSeedDir.
func moveSeed(d *fsutil.Dir) error {
	entries, err := d.ReadDir(completeSeedDir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := d.CheckExists(e.Name()); err == nil {
			continue
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := d.Rename(completeSeedDir+"/"+e.Name(), e.Name()); err != nil {
			return err
		}
	}
	return d.RemoveAll(completeSeedDir)
}

// syncTree writes the whole file system of the directory path to disk (syncfs(2)). If the machine crashes before that, the copied
// files may be incomplete.
func syncTree(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(fd), unix.Close(fd))
}
