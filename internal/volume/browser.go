package volume

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"hinit/internal/boot"

	"hinit/internal/fsutil"
)

const (
	browserVariable = "AGENT_BROWSER_EXECUTABLE_PATH"
	// maxBrowserFiles is the maximum number of files that are searched for a browser. A directory of browsers has a few
	// thousand files.
	maxBrowserFiles = 200_000
)

var browserNames = []string{"chrome", "chromium", "chrome-headless-shell", "headless_shell", "chromium-browser"}

// setBrowserVariable finds the image's browser, and sets a variable with its path for all programs that start later (contract,
// section 2.1, step 19).
func (p *bootSteps) setBrowserVariable(ctx context.Context, s *boot.Step) error {
	dir := boot.EnvOf(p.Env, "PLAYWRIGHT_BROWSERS_PATH")
	if boot.EnvOf(p.Env, browserVariable) != "" || dir == "" {
		return nil
	}
	path := p.bakedBrowser()
	if path == "" {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return nil
		}
		if err := p.Agent.Do(func() error { // act as the browser's user, so that no link leads to another user's file
			path = findBrowser(ctx, dir)
			return nil
		}); err != nil {
			return err
		}
	}
	if path == "" {
		s.Warn("no browser found below %s; browser tools may not work", dir)
		return nil
	}
	s.Info("Found agent-browser Chromium binary: %s", path)
	s.Env[browserVariable] = path
	return nil
}

// bakedBrowser returns the path of the browser that the image names in the file Image.BakedBrowser. It returns "" if there is
// none, or if it can't be executed.
func (p *bootSteps) bakedBrowser() string {
	data, _ := os.ReadFile(p.Image.BakedBrowser)
	path := strings.TrimSpace(string(data))
	if info, err := os.Stat(path); !filepath.IsAbs(path) || err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		return ""
	}
	return path
}

func findBrowser(ctx context.Context, dir string) (found string) {
	seen := 0
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if seen++; seen > maxBrowserFiles || ctx.Err() != nil {
			return fs.SkipAll
		}
		if err != nil || !e.Type().IsRegular() || !slices.Contains(browserNames, e.Name()) {
			return nil //nolint:nilerr // an unreadable file can't be executed either
		}
		if info, err := e.Info(); err == nil && info.Mode().Perm()&0o111 != 0 {
			found = path
			return fs.SkipAll
		}
		return nil
	})
	return found
}

// Publish writes the environment variables vars of a [Report] to a directory, one file for each variable. The tools of s6
// read them there. It creates the directory if necessary. It does nothing unless it runs as root, and ignores errors.
func Publish(o Options, vars map[string]string) {
	o = o.withDefaults()
	if os.Geteuid() != 0 || len(vars) == 0 {
		return
	}
	d, _, err := fsutil.MakeReal(o.Image.Environment, 0o755, nil)
	if err != nil {
		return
	}
	defer d.Close()
	for name, value := range vars {
		_ = d.Replace(name, []byte(value), fsutil.ReplaceOptions{Mode: 0o644, NoSync: true})
	}
}
