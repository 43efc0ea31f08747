package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// forbiddenPackages lists packages that the shim must not link, with the reasons. The shim runs as root, before every command of
// the agent.
var forbiddenPackages = map[string]string{
	"runtime/cgo":              "the shim is static: it runs in any image",
	"os/user":                  "internal/account reads the same files without cgo and NSS",
	"os/exec":                  "the shim replaces itself and starts nothing",
	"os/signal":                "it would start a goroutine and keep handlers",
	"net":                      "it has nothing to connect to; costs start-up time and 1 MB",
	"net/http":                 "it has nothing to connect to; costs start-up time and several MB",
	"crypto/tls":               "it has nothing to connect to",
	"encoding/json":            "reflection and tables cost start-up time",
	"regexp":                   "costs start-up time; package strings is enough",
	"text/template":            "costs start-up time, and keeps the linker from dropping methods",
	"html/template":            "costs start-up time, and keeps the linker from dropping methods",
	"go.yaml.in/yaml/v3":       "root parses nothing larger than two lines",
	"fmt":                      "costs start-up time; messages are put together by hand",
	"log":                      "brings fmt",
	"log/slog":                 "brings fmt, encoding and reflection",
	"hinit/internal/fsutil":    "the shim writes no file",
	"github.com/docker/docker": "never in a binary of PID 1's container",
}

// linkedPackages lists all packages outside the standard library that the shim links.
var linkedPackages = []string{"hinit/cmd/hinit-shim", "hinit/shim", "hinit/shim/agentuser", "hinit/shim/identity", "hinit/shim/lifecycle", "hinit/internal/account", "hinit/internal/trust", "golang.org/x/sys/unix"}

func TestDependencies(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1") // with cgo, the list also contains packages that only cgo builds link
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	deps := strings.Fields(string(out))
	if len(deps) < 20 {
		t.Fatalf("go list names only %q", deps)
	}
	for _, dep := range deps {
		if standard := !strings.Contains(dep, ".") && !strings.HasPrefix(dep, "hinit/"); !standard && !slices.Contains(linkedPackages, dep) {
			t.Errorf("the shim reaches %s, which is not one of its parts", dep)
		}
		for pkg, why := range forbiddenPackages {
			if dep == pkg || strings.HasPrefix(dep, pkg+"/") {
				t.Errorf("the shim reaches %s: %s", dep, why)
			}
		}
	}
}
