package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// definitions lists the CustomResourceDefinitions of other projects that the examples in docs/ use. Each is a file in a Go
// module of its project.
var definitions = []struct{ module, file string }{
	{"github.com/argoproj/argo-cd/v2@v2.14.21", "manifests/crds/application-crd.yaml"},
	{"github.com/backube/volsync@v0.7.1", "config/crd/bases/volsync.backube_replicationsources.yaml"},
	{"github.com/fluxcd/kustomize-controller@v1.6.0", "config/crd/bases/kustomize.toolkit.fluxcd.io_kustomizations.yaml"},
	{"github.com/fluxcd/source-controller@v1.9.0", "config/crd/bases/source.toolkit.fluxcd.io_gitrepositories.yaml"},
	{"github.com/vmware-tanzu/velero@v1.18.3", "config/crd/v1/bases/velero.io_schedules.yaml"},
}

// definitionsDir returns the directory in the cache for the fetched definitions.
func definitionsDir(cache string) string { return filepath.Join(cache, "definitions") }

// fetchDefinitions downloads the definitions that are missing in the cache, and removes all other files from their directory.
func fetchDefinitions(cache string) error {
	dir := definitionsDir(cache)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var names []string
	for _, d := range definitions {
		name := strings.NewReplacer("/", "_", "@", "_").Replace(d.module) + ".yaml"
		names = append(names, name)
		if fileExists(filepath.Join(dir, name)) {
			continue
		}
		cmd := exec.Command("go", "mod", "download", "-json", d.module)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=", "GOWORK=off")
		out, err := cmd.Output()
		var got struct{ Dir, Error string }
		if jsonErr := json.Unmarshal(out, &got); jsonErr != nil || got.Dir == "" {
			return fmt.Errorf("cannot download %s: %w", d.module, errors.Join(err, jsonErr, errors.New(got.Error)))
		}
		text, err := os.ReadFile(filepath.Join(got.Dir, d.file))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if !slices.Contains(names, e.Name()) {
			// Ignore the error: an outdated definition in the cache does no harm.
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
	return err
}

// Definitions returns the directory of the fetched CustomResourceDefinitions. The directory may be missing.
func Definitions() (string, error) {
	cache, err := CacheDir()
	return definitionsDir(cache), err
}
