package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// forbidden are packages that the shim must not reach, with the reason: it runs before every command of the agent, and as
// root.
var forbidden = map[string]string{
	"C":                        "the shim is static: it runs in any image",
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
	"hinit/internal/proc":      "only PID 1 forks and waits",
	"hinit/internal/config":    "hinit.yaml is PID 1's; the shim has its own two lines",
	"hinit/supervisor":         "the shim stands below the supervisor",
	"hinit/client":             "the shim works without PID 1",
	"github.com/docker/docker": "never in a binary of PID 1's container",
}

// own are the packages of this project that the shim is made of.
var own = []string{"hinit/cmd/hinit-shim", "hinit/shim", "hinit/internal/account"}

func TestDependencies(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	deps := strings.Fields(string(out))
	if len(deps) < 20 {
		t.Fatalf("go list names only %q", deps)
	}
	for _, dep := range deps {
		// Of our own packages there are two, and of others one.
		if strings.Contains(dep, ".") && dep != "golang.org/x/sys/unix" || strings.HasPrefix(dep, "hinit/") && !slices.Contains(own, dep) {
			t.Errorf("the shim reaches %s, which is not on the list", dep)
		}
		for pkg, why := range forbidden {
			if dep == pkg || strings.HasPrefix(dep, pkg+"/") {
				t.Errorf("the shim reaches %s: %s", dep, why)
			}
		}
	}
}
