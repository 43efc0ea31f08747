// Command gendocs writes the reference pages that are made from the code. The command line comes from the verbs' own help, the
// output with --json from the Go types, and the keys of hinit.yaml from its schema. The states of a service come from the
// transition table of the tests of the state machine. The list of packages comes from the package comments and from the
// dependency layers in deps_test.go. Run it from anywhere in the module with "go run ./internal/gendocs". A test fails when a
// page is out of date. It owns no goroutine.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"hinit/test/image"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "gendocs:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	bin, remove, err := buildPrograms(ctx, root)
	if err != nil {
		return err
	}
	defer remove()
	all, err := generatePages(ctx, root, bin)
	if err != nil {
		return err
	}
	for name, content := range all {
		if err := os.WriteFile(filepath.Join(root, name), []byte(content), 0o644); err != nil {
			return fmt.Errorf("cannot write a page: %w", err)
		}
	}
	return nil
}

// generatePages returns the content of every generated page, by the page's path in the module. bin is the directory with the
// programs.
func generatePages(ctx context.Context, root, bin string) (map[string]string, error) {
	cli, err := commandsPage(ctx, filepath.Join(bin, "hinit"))
	if err != nil {
		return nil, err
	}
	kanban, err := kanbanPage(ctx, filepath.Join(bin, "hinit-kanban"))
	if err != nil {
		return nil, err
	}
	shapes, err := jsonPage(root, cli)
	if err != nil {
		return nil, err
	}
	states, err := statesPage(root)
	if err != nil {
		return nil, err
	}
	rows, err := readTransitions(filepath.Join(root, "supervisor", "machine.go"))
	if err != nil {
		return nil, err
	}
	picture, err := stateDiagram(rows)
	if err != nil {
		return nil, err
	}
	all, err := packagePages(root)
	if err != nil {
		return nil, err
	}
	sandboxes, err := sandboxPages(ctx, filepath.Join(bin, "hinit-sandbox"))
	if err != nil {
		return nil, err
	}
	maps.Copy(all, sandboxes)
	commands, err := commandPages(ctx, filepath.Join(bin, "hinit"))
	if err != nil {
		return nil, err
	}
	maps.Copy(all, commands)
	trust, err := trustPage()
	if err != nil {
		return nil, err
	}
	schema, err := configSchema()
	if err != nil {
		return nil, err
	}
	maps.Copy(all, map[string]string{
		"docs/reference/trust.md":           trust,
		"internal/config/hinit.schema.json": schema,
		"docs/img/states.svg":               picture,
		"docs/reference/cli.md":             cli,
		"docs/reference/hinit-yaml.md":      configPage(),
		"docs/reference/image.md":           image.Page(),
		"docs/reference/json.md":            shapes,
		"docs/reference/kanban.md":          kanban,
		"docs/reference/metrics.md":         metricsPage(),
		"docs/reference/states.md":          states,
	})
	return all, nil
}

// moduleRoot returns the directory that contains go.mod: the working directory or one of its parents.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("cannot find the module: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("cannot find the module: no go.mod here or above")
		}
		dir = parent
	}
}
