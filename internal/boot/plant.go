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
	// SeedDir is what the first boot makes of an empty data directory, as the build of the image has kept it.
	SeedDir = "/usr/share/hinit/home"
	// seedRecord is put after the name of that directory: a record of the steps that have made it.
	seedRecord = ".json"
)

// lostAndFound is in every empty ext4.
const lostAndFound = "lost+found"

// beforeTheBoot is what an empty data directory may hold: what the file system, the lease and an interrupted boot leave.
var beforeTheBoot = []string{lostAndFound, lease.DirName, pendingName}

// plant copies what the image keeps for an empty data directory, if it is empty. Everything is made by the agent's user and has
// the mode that it has in the image.
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

// kept is the record that stands beside the kept directory. All users can read that; so the modes that its files are to have,
// where they are others, are here.
type kept struct {
	record
	Modes map[string]fs.FileMode `json:"modes"`
}

// copyTree copies directories and regular files. modes says which permission bits something gets. Nothing is synced.
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

// withoutKey is an .env without the key that the boot generates for each container.
func withoutKey(data []byte) []byte {
	var b strings.Builder
	for line := range strings.Lines(string(data)) {
		if _, mine := keyValue(line); !mine {
			b.WriteString(line)
		}
	}
	return []byte(b.String())
}

// syncTree writes out the file system of a directory (syncfs(2)). A machine that crashes before it is done has an incomplete copy.
func syncTree(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(fd), unix.Close(fd))
}

// neverKept is what the first boot of one container leaves that is not for another.
var neverKept = []string{
	"logs", recordFile, pendingName, lostAndFound, lease.DirName, "gateway_state.json", "gateway.pid", "gateway.lock", "processes.json", "auth.json",
	"auth.lock", "state",
}

// KeepHome is for the build of an image: it keeps what a boot has made of an empty data directory home in dir, together with the
// record of the boot steps. Keys that the boot has generated are not kept. The names of the steps that need not run with it are
// returned; without any, nothing is kept.
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

// readKept reads that record.
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
