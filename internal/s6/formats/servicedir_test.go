package formats

import (
	"fmt"
	"io/fs"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

type fakeFiles map[string]string

func (f fakeFiles) Lstat(name string) (fs.FileInfo, error) {
	m := fstest.MapFS{}
	for name, text := range f {
		if dir, isDir := strings.CutSuffix(name, "/"); isDir {
			m[dir] = &fstest.MapFile{Mode: fs.ModeDir | 0o755}
			continue
		}
		m[name] = &fstest.MapFile{Data: []byte(text), Mode: 0o755}
	}
	return m.Stat(name)
}

func (f fakeFiles) ReadFile(name string, max int64) ([]byte, error) {
	text, there := f[name]
	switch {
	case !there:
		return nil, fmt.Errorf("cannot read %q: %w", name, fs.ErrNotExist)
	case int64(len(text)) > max:
		return nil, fmt.Errorf("cannot read %q: too large", name)
	}
	return []byte(text), nil
}

func TestAServiceDirectoryWithoutFurtherFilesHasTheDefaultsOfS6(t *testing.T) {
	want := Definition{FinishTimeout: 5 * time.Second, DownSignal: 15, ReloadSignal: 1, MaxDeaths: 100}
	if got := ReadDefinition(fakeFiles{"run": ""}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestAServiceDirectoryIsReadAsItIsWritten(t *testing.T) {
	got := ReadDefinition(fakeFiles{
		"run": "", "finish": "", "down": "", "log/": "", "type": "longrun\n", "flag-timeout-killpg": "",
		"timeout-finish": "0\n", "timeout-kill": "2500\nmore\n", "down-signal": "SIGINT\n", "reload-signal": "12", "notification-fd": "3\n",
		"max-death-tally": "5000\n",
	})
	want := Definition{
		Down: true, Logger: true, KillGroup: true, KillTimeout: 2500 * time.Millisecond,
		DownSignal: 2, ReloadSignal: 12, NotifyFD: 3, MaxDeaths: 4096,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestInvalidSettingsAreReportedAndIgnored(t *testing.T) {
	got := ReadDefinition(fakeFiles{
		"run": "", "timeout-finish": "soon", "timeout-kill": "-1", "down-signal": "SIGNIFICANT", "reload-signal": "",
		"notification-fd": "0", "log": "a file", "max-death-tally": "many",
	})
	if len(got.Warnings) != 6 {
		t.Errorf("warnings: %q, want six", got.Warnings)
	}
	got.Warnings = nil
	if want := (Definition{FinishTimeout: 5 * time.Second, DownSignal: 15, ReloadSignal: 1, MaxDeaths: 100}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := ReadDefinition(fakeFiles{"run": "", "timeout-kill": strings.Repeat("1", 1<<20)}); len(got.Warnings) != 1 {
		t.Errorf("a megabyte of digits: %q, want a warning", got.Warnings)
	}
}

func TestADirectoryWithoutAProgramIsBroken(t *testing.T) {
	for name, dir := range map[string]fakeFiles{"no run": {}, "no file": {"run/": ""}} {
		if got := ReadDefinition(dir); got.Broken == "" {
			t.Errorf("%s: %+v is not broken", name, got)
		}
	}
}

// FuzzReadDefinition checks that a service directory with any content gives a usable definition.
func FuzzReadDefinition(f *testing.F) {
	f.Add("", "5000\n", "0", "SIGTERM", "HUP\n", "3\n")
	f.Add("#!/bin/sh", "-1", "99999999999999999999", "65", "", "2147483648")
	f.Fuzz(func(t *testing.T, run, finish, kill, down, reload, fd string) {
		d := ReadDefinition(fakeFiles{
			"run": run, "timeout-finish": finish, "timeout-kill": kill, "down-signal": down, "reload-signal": reload, "notification-fd": fd,
		})
		if d.Broken != "" || d.FinishTimeout < 0 || d.KillTimeout < 0 || d.NotifyFD < 0 || d.NotifyFD > maxNotifyFD ||
			d.DownSignal < 1 || d.DownSignal > maxSignal || d.ReloadSignal < 1 || d.ReloadSignal > maxSignal {
			t.Errorf("%q %q %q %q %q: %+v", finish, kill, down, reload, fd, d)
		}
	})
}
