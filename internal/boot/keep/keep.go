// Package keep saves the agent's data directory during the build of an image, after a first boot in it. A container of that
// image copies these files to an empty volume, which is faster than the boot steps that made them.
//
// The package saves no secrets, and no state of a single container. It starts no goroutine.
package keep

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"hinit/internal/boot"
	"hinit/internal/boot/kept"
	"hinit/internal/fsutil"
	"hinit/internal/lease"
)

// excludedFiles lists files of a single container, which SaveSeed leaves out.
var excludedFiles = []string{
	"logs", boot.BootRecordFile, boot.RepairPendingFile, kept.LostAndFound, lease.DirName, "gateway_state.json", "gateway.pid", "gateway.lock", "processes.json", "auth.json",
	"auth.lock", "state",
}

// SaveSeed saves the data directory home in the file seed. The build of an image calls it after a boot has filled the empty
// directory. Save also saves the record of the boot steps, but no generated keys. It returns the names of the steps that a boot
// can skip because of the seed. Without such steps, SaveSeed saves no files.
func SaveSeed(home, seed string) (steps []string, err error) {
	from, err := fsutil.OpenNoLink(home, nil)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	var r kept.StepRecord
	data, err := from.ReadFile(boot.BootRecordFile, kept.MaxRecordSize)
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err == nil && len(r.Steps) > 0 {
		err = writeSeed(home, seed, r)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot keep %q: %w", home, err)
	}
	return slices.Sorted(maps.Keys(r.Steps)), nil
}

func writeSeed(home, seed string, r kept.StepRecord) error {
	k := kept.SeedIndex{StepRecord: r}
	var all []byte
	err := filepath.WalkDir(home, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == home {
			return err
		}
		rel, err := filepath.Rel(home, path)
		if err != nil {
			return err
		}
		if slices.Contains(excludedFiles, rel) {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		f := kept.SeedFile{Name: rel, Mode: info.Mode()}
		switch {
		case info.IsDir():
			f.Mode |= 0o700
		case info.Mode().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if rel == boot.EnvFile {
				data = kept.WithoutGeneratedKey(data)
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
	dir, _, err := fsutil.MakeNoLink(filepath.Dir(seed), 0o755, nil)
	if err != nil {
		return err
	}
	defer dir.Close()
	name, readable := filepath.Base(seed), fsutil.ReplaceOptions{Mode: 0o644}
	return errors.Join(dir.Replace(name, all, readable), dir.Replace(name+kept.IndexSuffix, append(index, '\n'), readable))
}
