package boot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/lease"
)

const (
	// SeedDir holds what the first boot makes of an empty data directory, saved by the build of the image.
	SeedDir = "/usr/share/hinit/home"
	// seedRecord is the suffix of the file with the record of the steps that made SeedDir.
	seedRecord = ".json"
)

// lostAndFound is in every empty ext4.
const lostAndFound = "lost+found"

// beforeTheBoot are the names that an empty data directory may hold: of the file system, the lease and an interrupted boot.
var beforeTheBoot = []string{lostAndFound, lease.DirName, pendingName}

// plant copies SeedDir to an empty data directory, as the agent's user and with the modes of the image.
func (p *preparer) plant(ctx context.Context, s *step) error {
	if p.linked {
		return nil
	}
	d, err := p.asAgent()
	if err != nil {
		return err
	}
	defer d.Close()
	empty := true
	err = d.EachName("", func(name string, _ fs.FileMode) bool {
		empty = slices.Contains(beforeTheBoot, name)
		return empty
	})
	if err != nil || !empty {
		return err
	}
	k, err := readKept(p.Seed)
	if err == nil {
		err = d.Together(func(d *fsutil.Dir) error {
			return copyTree(ctx, os.DirFS(p.Seed), d, func(rel string, has fs.FileMode) fs.FileMode {
				if mode, set := k.Modes[rel]; set {
					return mode
				}
				return has
			})
		})
	}
	if err != nil {
		return fmt.Errorf("cannot fill %q with what the image keeps for an empty one, so the boot steps have to: %w", p.Home, err)
	}
	s.planted = true
	guard.Go("syncing the data directory", func() {
		_ = blocking.Do(blocking.Volume, func() error { // it is a precaution
			return syncTree(p.Home)
		})
	})
	return nil
}

// kept is the record beside SeedDir. SeedDir is readable by all; files that need another mode have it here.
type kept struct {
	record
	Modes map[string]fs.FileMode `json:"modes"`
}

// copyTree copies directories and regular files, without a sync. mode returns the permission bits of a file.
func copyTree(ctx context.Context, from fs.FS, to *fsutil.Dir, mode func(rel string, has fs.FileMode) fs.FileMode) error {
	return fs.WalkDir(from, ".", func(rel string, e fs.DirEntry, err error) error {
		if err != nil || rel == "." {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
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
		switch bits := mode(rel, info.Mode().Perm()); {
		case info.IsDir():
			if err := to.Mkdir(rel, 0o700); err != nil {
				return err
			}
			_, err := to.Chmod(rel, bits|0o700)
			return err
		case info.Mode().IsRegular():
			data, err := fs.ReadFile(from, rel)
			if err != nil {
				return err
			}
			if rel == envFile {
				data = withoutKey(data)
			}
			return to.Replace(rel, data, fsutil.ReplaceOptions{Mode: bits, Volatile: true})
		}
		return fmt.Errorf("%s is neither a file nor a directory", rel)
	})
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

// KeepHome is for the build of an image: it saves in dir what a boot has made of an empty data directory home, with the record of
// the boot steps, but without generated keys. It returns the names of the steps that can be skipped with it; without any, it keeps
// nothing.
func KeepHome(home, dir string) (steps []string, err error) {
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
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot keep %q: %w", home, err)
	}
	if len(r.Steps) > 0 {
		if err := keep(home, dir, r); err != nil {
			return nil, fmt.Errorf("cannot keep %q: %w", home, err)
		}
	}
	return slices.Sorted(maps.Keys(r.Steps)), nil
}

func keep(home, dir string, r record) error {
	to, _, err := fsutil.MakeReal(dir, 0o755, nil)
	if err != nil {
		return err
	}
	defer to.Close()
	k := kept{r, make(map[string]fs.FileMode)}
	err = copyTree(context.Background(), os.DirFS(home), to, func(rel string, has fs.FileMode) fs.FileMode {
		readable := has | 0o444
		if has&0o111 != 0 {
			readable |= 0o111
		}
		if readable != has {
			k.Modes[rel] = has
		}
		return readable
	})
	if err != nil {
		return err
	}
	data, err := json.Marshal(k)
	if err != nil {
		return err
	}
	parent, _, err := fsutil.MakeReal(filepath.Dir(dir), 0o755, nil)
	if err != nil {
		return err
	}
	defer parent.Close()
	return parent.Replace(filepath.Base(dir)+seedRecord, append(data, '\n'), fsutil.ReplaceOptions{Mode: 0o644})
}

func readKept(dir string) (k kept, err error) {
	data, err := os.ReadFile(dir + seedRecord)
	if err == nil {
		err = json.Unmarshal(data, &k)
	}
	if err == nil && k.Format != recordFormat {
		err = fmt.Errorf("its format is %d, not %d", k.Format, recordFormat)
	}
	return k, err
}
