package boot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/lease"
)

const (
	// Seed is the file that the build of the image saves after a first boot with an empty data directory. It has the content of
	// all files, one after the other. Their names are in a file beside it, with the suffix seedIndex.
	Seed      = "/usr/share/hinit/home"
	seedIndex = ".json"

	// A copy of the seed grows in a directory of the volume, gets another name when it is complete, and is then moved to its places.
	// A boot that finds either goes on from there.
	seedGrowing = ".hinit-seed.new"
	seedGrown   = ".hinit-seed"
	// syncAfter is when the copy is synced. A process cannot end while it syncs, and many containers are over before that.
	syncAfter = 5 * time.Second
	// seedChunk is how much of the seed is in memory at a time; one larger file may be.
	seedChunk = 1 << 20
)

// lostAndFound is in every empty ext4.
const lostAndFound = "lost+found"

// beforeTheBoot are the names that an empty data directory may hold: of the file system, the lease and an interrupted boot.
var beforeTheBoot = []string{lostAndFound, lease.DirName, pendingName, seedGrowing}

// plant copies the seed to an empty data directory, as the agent's user and with the modes of the image.
func (p *preparer) plant(ctx context.Context, s *step) error {
	if p.linked {
		return nil
	}
	d, err := p.asAgent()
	if err != nil {
		return err
	}
	defer d.Close()
	empty, grown := true, false
	err = d.EachName("", func(name string, kind fs.FileMode) bool {
		grown = name == seedGrown && kind.IsDir()
		empty = empty && slices.Contains(beforeTheBoot, name)
		return !grown
	})
	if err != nil || !empty && !grown {
		return err
	}
	err = d.Together(func(d *fsutil.Dir) error {
		if !grown {
			if err := p.grow(ctx, d); err != nil {
				return err
			}
		}
		return settle(d)
	})
	if err != nil {
		return fmt.Errorf("cannot fill %q with what the image keeps for an empty one, so the boot steps have to: %w", p.Home, err)
	}
	s.planted = true
	time.AfterFunc(syncAfter, func() {
		defer guard.Catch("syncing the data directory")
		_ = blocking.Do(blocking.Volume, func() error { // it is a precaution
			return syncTree(p.Home)
		})
	})
	return nil
}

// grow writes the seed to seedGrown.
func (p *preparer) grow(ctx context.Context, d *fsutil.Dir) error {
	k, err := readKept(p.Seed)
	if err != nil {
		return err
	}
	data, err := os.Open(p.Seed)
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
			return fmt.Errorf("cannot read %q: %w", p.Seed, err)
		}
		rest := buf
		for i := range nodes {
			nodes[i].Data, rest = rest[:files[i].Size], rest[files[i].Size:]
		}
		if err := to.Grow(nodes); err != nil {
			return err
		}
		files = files[len(nodes):]
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return d.Rename(seedGrowing, seedGrown)
}

// settle moves the content of seedGrown to the data directory, and removes seedGrown. An existing file is kept.
func settle(d *fsutil.Dir) error {
	entries, err := d.ReadDir(seedGrown)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := d.Has(e.Name()); err == nil {
			continue
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := d.Rename(seedGrown+"/"+e.Name(), e.Name()); err != nil {
			return err
		}
	}
	return d.RemoveAll(seedGrown)
}

// kept is the record beside the seed.
type kept struct {
	record
	Files []keptFile `json:"files"` // a directory comes before what is in it
}

type keptFile struct {
	Name string      `json:"name"`
	Mode fs.FileMode `json:"mode"`
	Size int         `json:"size,omitempty"`
}

// withoutKey returns an .env without the key that the boot generates for each container.
func withoutKey(data []byte) []byte {
	var b strings.Builder
	for line := range strings.Lines(string(data)) {
		if _, mine := keyValue(line); !mine {
			b.WriteString(line)
		}
	}
	return []byte(b.String())
}

// syncTree writes out the file system of a directory (syncfs(2)). A crash before its end leaves an incomplete copy.
func syncTree(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(fd), unix.Close(fd))
}

// neverKept are files of the first boot that belong to one container.
var neverKept = []string{
	"logs", recordFile, pendingName, lostAndFound, lease.DirName, "gateway_state.json", "gateway.pid", "gateway.lock", "processes.json", "auth.json",
	"auth.lock", "state",
}

// KeepHome is for the build of an image. A boot has filled the empty data directory home; KeepHome saves it in the file seed,
// with the record of the boot steps and without generated keys. It returns the names of the steps that can be skipped with it;
// without any, it saves nothing.
func KeepHome(home, seed string) (steps []string, err error) {
	from, err := fsutil.OpenReal(home, nil)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	var r record
	data, err := from.ReadFile(recordFile, maxRecord)
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err == nil && len(r.Steps) > 0 {
		err = keep(home, seed, r)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot keep %q: %w", home, err)
	}
	return slices.Sorted(maps.Keys(r.Steps)), nil
}

func keep(home, seed string, r record) error {
	k := kept{record: r}
	var all []byte
	err := filepath.WalkDir(home, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == home {
			return err
		}
		rel, err := filepath.Rel(home, path)
		if err != nil {
			return err
		}
		if slices.Contains(neverKept, rel) {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		f := keptFile{Name: rel, Mode: info.Mode()}
		switch {
		case info.IsDir():
			f.Mode |= 0o700
		case info.Mode().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if rel == envFile {
				data = withoutKey(data)
			}
			f.Size = len(data)
			all = append(all, data...)
		default:
			return fmt.Errorf("%s is neither a file nor a directory", rel)
		}
		k.Files = append(k.Files, f)
		return nil
	})
	if err != nil {
		return err
	}
	index, err := json.Marshal(k)
	if err != nil {
		return err
	}
	dir, _, err := fsutil.MakeReal(filepath.Dir(seed), 0o755, nil)
	if err != nil {
		return err
	}
	defer dir.Close()
	name, readable := filepath.Base(seed), fsutil.ReplaceOptions{Mode: 0o644} // for a container may start as any user
	return errors.Join(dir.Replace(name, all, readable), dir.Replace(name+seedIndex, append(index, '\n'), readable))
}

func readKept(seed string) (k kept, err error) {
	data, err := os.ReadFile(seed + seedIndex)
	if err == nil {
		err = json.Unmarshal(data, &k)
	}
	if err == nil && k.Format != recordFormat {
		err = fmt.Errorf("its format is %d, not %d", k.Format, recordFormat)
	}
	return k, err
}
