// Command generate writes the manifests in kubernetes/deploy, and the reference page of their values. It owns no goroutine.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"hinit/kubernetes/internal/deploy"
)

func main() {
	if err := run("deploy", "../docs/reference/kubernetes.md"); err != nil {
		fmt.Fprintln(os.Stderr, "cannot write the manifests:", err)
		os.Exit(1)
	}
}

func run(dir, page string) error {
	files, err := deploy.Files()
	if err != nil {
		return err
	}
	for _, name := range deploy.SortedPaths(files) { // Write only generated files: the directory fleet is written by hand.
		top, _, _ := strings.Cut(name, "/")
		if err := os.RemoveAll(filepath.Join(dir, top)); err != nil {
			return err
		}
	}
	for _, name := range deploy.SortedPaths(files) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, files[name], 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(page, []byte(deploy.Page()), 0o644)
}
