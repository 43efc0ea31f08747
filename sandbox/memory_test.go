package sandbox

import (
	"errors"
	"os"
	"strconv"
	"testing"
)

func TestMemoryKeeps(t *testing.T) {
	m := fakeManager(t, newFake(), nil)
	if _, ok := m.LoadCached("a"); ok {
		t.Error("it has what nobody put")
	}
	m.StoreCached("a", []byte("1"))
	m.StoreCached("a", []byte("2"))
	if v, ok := m.LoadCached("a"); !ok || string(v) != "2" {
		t.Errorf("%q %v", v, ok)
	}
	m.StoreCached("a", nil)
	if _, ok := m.LoadCached("a"); ok {
		t.Error("it has what was forgotten")
	}
}

// TestMemoryIsBounded checks that the files with remembered values have a limited total size,
// although an agent's commands fail with much output.
func TestMemoryIsBounded(t *testing.T) {
	m := fakeManager(t, newFake(), nil)
	profiles := []*Manager{m}
	for range 7 {
		profiles = append(profiles, fakeManager(t, newFake(), func(o *Options) { o.State = m.opts.State }))
	}
	const one = 256 << 10
	for i := range 200 {
		profiles[i%len(profiles)].StoreCached("long"+strconv.Itoa(i), make([]byte, one))
	}
	size, entries := int64(0), []os.DirEntry(nil)
	entries, err := os.ReadDir(m.opts.State + "/" + cacheDir)
	for _, e := range entries {
		info, infoErr := e.Info()
		if err = errors.Join(err, infoErr); err == nil {
			size += info.Size()
		}
	}
	if err != nil || size > maxCacheBytes || size < maxCacheBytes/2 {
		t.Errorf("it keeps %d bytes (%v)", size, err)
	}
	if _, ok := m.LoadCached("long199"); !ok {
		t.Error("it forgot the newest one")
	}
}
