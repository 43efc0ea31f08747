package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hinit/internal/testkit"
)

// TestPagesAreUpToDate fails if a generated page is out of date.
func TestPagesAreUpToDate(t *testing.T) {
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := testkit.Build(bin, documentedPrograms...); err != nil {
		t.Fatal(err)
	}
	all, err := generatePages(t.Context(), root, bin)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range all {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Errorf("%v; run: make docs", err)
			continue
		}
		if string(got) != want {
			t.Errorf("%s is out of date (first difference: %s); run: make docs", name, difference(string(got), want))
		}
	}
}

func difference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range w {
		if i >= len(g) || g[i] != w[i] {
			return "it should have the line " + w[i]
		}
	}
	return "it has lines too many"
}

func TestTroffPrintsTheTextAsItIs(t *testing.T) {
	if got := escapeRoff(`.5 of a-b \n`); got != `\&.5 of a\-b \en` {
		t.Errorf("got %q", got)
	}
}
