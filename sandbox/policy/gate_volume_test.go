package policy

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"

	"hinit/sandbox"
)

// volumeEngine is an engine with one volume, which stores copied files.
type volumeEngine struct {
	sandbox.FullEngine
	volumeContent []byte
	copies        int
}

func (v *volumeEngine) Create(context.Context, sandbox.Spec) (string, error)          { return "id", nil }
func (v *volumeEngine) CreateVolume(context.Context, string, map[string]string) error { return nil }
func (v *volumeEngine) Remove(context.Context, string) error                          { return nil }

func (v *volumeEngine) CopyIn(_ context.Context, _, _ string, r io.Reader) (err error) {
	v.copies++
	v.volumeContent, err = io.ReadAll(r)
	return err
}

func (v *volumeEngine) CopyOut(context.Context, string, string) (io.ReadCloser, error) {
	if v.volumeContent == nil {
		return nil, sandbox.ErrGone
	}
	return io.NopCloser(bytes.NewReader(v.volumeContent)), nil
}

// TestTheGateIsWrittenToItsVolumeOnce checks that the program on the volume is replaced only if its
// content differs. Another service may start a container from the volume at any moment.
func TestTheGateIsWrittenToItsVolumeOnce(t *testing.T) {
	program := filepath.Join(t.TempDir(), "helper")
	if err := os.WriteFile(program, []byte("a program"), 0o600); err != nil {
		t.Fatal(err)
	}
	engine := &volumeEngine{}
	fill := func(want int) {
		t.Helper()
		if _, err := (&Gate{Program: program}).fillVolume(t.Context(), engine, "image"); err != nil || engine.copies != want {
			t.Errorf("copied %d times, want %d; %v", engine.copies, want, err)
		}
	}
	fill(1)
	fill(1)
	engine.volumeContent = bytes.Replace(engine.volumeContent, []byte("a program"), []byte("b program"), 1)
	fill(2)
	engine.volumeContent = engine.volumeContent[:515]
	fill(3)
	engine.volumeContent = nil
	fill(4)
}
