package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestSite builds the site of the documents. It also builds a site with a dead link, which must fail.
func TestSite(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds a program with a library of its own")
	}
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "site")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./site")
	build.Dir = filepath.Join(root, "tools")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build the generator: %v\n%s", err, out)
	}
	site := filepath.Join(t.TempDir(), "site")
	if out, err := exec.CommandContext(t.Context(), program, "-root", root, "-out", site).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	page, err := os.ReadFile(filepath.Join(site, "docs/how-to/work-in-a-terminal.html"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`href="../../index.html"`, "Decisions", "prefers-color-scheme: dark", `id="completion"`, `href="../../docs/tutorial/first-container.html"`} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page has no %s", want)
		}
	}

	bad := t.TempDir()
	for name, text := range map[string]string{
		"README.md": "[a](docs/a.md#there) [b](docs/a.md#not-there) [c](docs/none.md)", "docs/a.md": "# A\n\n## There\n",
		"CHANGELOG.md": "", "CONTRIBUTING.md": "", "SECURITY.md": "", "STYLE.md": "",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(bad, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(bad, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.CommandContext(t.Context(), program, "-root", bad, "-out", filepath.Join(t.TempDir(), "site")).CombinedOutput()
	if err == nil || strings.Contains(string(out), "#there\n") || !strings.Contains(string(out), "README.md: docs/a.md#not-there") || !strings.Contains(string(out), "README.md: docs/none.md") {
		t.Errorf("dead links: %v\n%s", err, out)
	}
}
