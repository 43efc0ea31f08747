package forward

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"hinit/internal/fsutil"
)

// file is a Sink that writes records to a file with a size limit, one JSON object per line. A full file is renamed to PATH.1 and
// replaced by a new file. If there are too many full files, the oldest one is removed.
type file struct {
	path      string
	maxSize   int64 // size limit of a file in bytes
	keptFiles int   // number of full files to keep
}

// Send implements Sink. If the last line of the file is incomplete, because an earlier write was cut off, Send first ends that
// line.
func (l *file) Send(_ context.Context, records []Record) error {
	data := []byte{'\n'}
	for i := range records {
		text, err := json.Marshal(&records[i])
		if err != nil {
			return RefusedError{err}
		}
		data = append(append(data, text...), '\n')
	}
	return inDir(l.path, nil, func(d *fsutil.Dir, name string) error {
		f, err := d.OpenUpdate(name, 0o600)
		if err != nil {
			return err
		}
		defer f.Close() // an error is harmless, because the data is synced
		size, err := f.Seek(0, io.SeekEnd)
		last := []byte{'\n'}
		if err == nil && size > 0 {
			_, err = f.ReadAt(last, size-1)
		}
		if err != nil {
			return err
		}
		if last[0] == '\n' {
			data = data[1:]
		}
		if _, err = f.Write(data); err != nil || size+int64(len(data)) <= l.maxSize {
			return errors.Join(err, f.Sync())
		}
		for i := l.keptFiles - 1; i > 0; i-- {
			_ = d.Rename(fmt.Sprintf("%s.%d", name, i), fmt.Sprintf("%s.%d", name, i+1)) // most of these files do not exist
		}
		_ = d.Rename(name, name+".1") // if the rename fails, the file grows beyond the limit
		return f.Sync()
	})
}

// Close implements Sink.
func (*file) Close() error { return nil }

// inDir opens the directory of the file at path, and calls fn with the directory and the file's name. A nil actor means this
// process. The agent may own directories on the path, so this process does not follow links there if it is root.
func inDir(path string, as *fsutil.Actor, fn func(d *fsutil.Dir, name string) error) error {
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return err
	}
	open := fsutil.OpenDir
	if as == nil && os.Geteuid() == 0 {
		open = fsutil.OpenNoLink
	}
	d, err := open(dir, as)
	if err != nil {
		return err
	}
	defer d.Close()
	return fn(d, filepath.Base(path))
}
