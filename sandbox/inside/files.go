package inside

import (
	"path/filepath"

	"hinit/sandbox/archive"
	"hinit/sandbox/mux"
)

func fileEnd(err error) mux.End {
	if err != nil {
		return mux.End{Fault: mux.FileFault, Code: 1, Text: err.Error()}
	}
	return mux.End{}
}

// getTree sends a path as an archive. Names in it begin with the last element of the path.
func (ch *channel) getTree() mux.End {
	top := filepath.Clean(ch.open.Path)
	return fileEnd(archive.Pack(ch.Output, top, filepath.Base(top)))
}

// putTree unpacks an archive below a directory.
func (ch *channel) putTree() mux.End { return fileEnd(archive.Unpack(ch.Input, ch.open.Path)) }
