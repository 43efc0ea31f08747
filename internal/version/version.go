// Package version returns the build of the running hinit.
//
// It uses only the data that the go command has stamped into the binary, so the build needs no linker flags and no generated
// file. It reports a build without such a stamp as unknown, and invents no version. The package starts no goroutine.
package version

import (
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
)

// Info describes a build. Fields without a stamp are empty.
type Info struct {
	Version  string `json:"version"`            // module version such as v1.2.3, or "devel"
	Revision string `json:"revision,omitempty"` // full commit hash
	Time     string `json:"time,omitempty"`
	Modified bool   `json:"modified,omitempty"` // built with changes that were not committed
	Go       string `json:"go"`                 // Go version, such as go1.26.0
}

// Get returns the version of the running binary. It is determined only once. Any goroutine may call Get.
func Get() Info { return readBuild() }

var readBuild = sync.OnceValue(func() Info {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return Info{Version: unstampedVersion, Go: runtime.Version()}
	}
	return fromBuild(build)
})

// unstampedVersion is the version of a build that was not stamped with a version.
const unstampedVersion = "devel"

func fromBuild(build *debug.BuildInfo) Info {
	info := Info{Version: build.Main.Version, Go: build.GoVersion}
	for _, s := range build.Settings {
		switch s.Key {
		case "vcs.revision":
			info.Revision = s.Value
		case "vcs.time":
			info.Time = s.Value
		case "vcs.modified":
			info.Modified = s.Value == "true"
		}
	}
	if info.Version == "" || info.Version == "(devel)" {
		info.Version = unstampedVersion
	}
	return info
}

// String describes the build in one line: "devel (revision 0123456789ab, modified, 2026-01-02T03:04:05Z) go1.26.0". Without a
// stamped revision, it contains "unknown revision".
func (i Info) String() string {
	parts := []string{"unknown revision"}
	if i.Revision != "" {
		const short = 12
		parts[0] = "revision " + i.Revision[:min(short, len(i.Revision))]
	}
	if i.Modified {
		parts = append(parts, "modified")
	}
	if i.Time != "" {
		parts = append(parts, i.Time)
	}
	return i.Version + " (" + strings.Join(parts, ", ") + ") " + i.Go
}
