package forward

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"hinit/internal/fsutil"
)

// file is a file with one JSON object a line and a size limit. A full file becomes PATH.1, and the oldest one is removed.
type file struct {
	path string
	most int64
	keep int
	dir  *fsutil.Dir
	file *os.File
	size int64
}

// Send implements Sink. If an earlier write was cut off, it first ends that line.
func (l *file) Send(_ context.Context, records []Record) error {
	var b bytes.Buffer
	if l.file == nil {
		cut, err := l.open()
		if err != nil {
			return errors.Join(err, l.Close())
		}
		if cut {
			b.WriteByte('\n')
		}
	}
	for i := range records {
		text, err := json.Marshal(&records[i])
		if err != nil {
			return &RefusedError{err.Error()}
		}
		b.Write(text)
		b.WriteByte('\n')
	}
	_, err := l.file.Write(b.Bytes())
	if err == nil {
		err = l.file.Sync()
	}
	if err != nil {
		return errors.Join(err, l.Close())
	}
	if l.size += int64(b.Len()); l.size > l.most {
		name := filepath.Base(l.path)
		for i := l.keep - 1; i > 0; i-- {
			_ = l.dir.Rename(fmt.Sprintf("%s.%d", name, i), fmt.Sprintf("%s.%d", name, i+1)) // most of these files do not exist
		}
		_ = l.dir.Rename(name, name+".1") // if the rename fails, the file grows beyond the limit
		_ = l.Close()                     // its data is written
	}
	return nil
}

// open opens the file. cut reports whether its last line has no end. The agent may own the directory, so it follows no link there.
func (l *file) open() (cut bool, err error) {
	if l.dir, err = openDir(filepath.Dir(l.path)); err != nil {
		return false, err
	}
	if l.file, err = l.dir.OpenUpdate(filepath.Base(l.path), 0o600); err != nil {
		return false, err
	}
	if l.size, err = l.file.Seek(0, 2); err != nil || l.size == 0 {
		return false, err
	}
	last := make([]byte, 1)
	_, err = l.file.ReadAt(last, l.size-1)
	return last[0] != '\n', err
}

// Close implements Sink.
func (l *file) Close() error {
	var err error
	if l.file != nil {
		err = l.file.Close()
	}
	if l.dir != nil {
		l.dir.Close()
	}
	l.file, l.dir = nil, nil
	return err
}
