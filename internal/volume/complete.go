package volume

import (
	"cmp"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"hinit/internal/boot"
	"hinit/internal/fsutil"
)

// Options are the settings of one job. Home, Logs, User, Agent and Env are required. In the other fields, zero means the
// default for the Hermes image.
type Options struct {
	boot.Options

	Image ImagePaths

	MaxInodes int64         // maximum number of files in one directory tree; Repair leaves a larger tree unfinished; 0: 2,000,000
	MaxTime   time.Duration // time limit of Repair; 0: 30 min
}

// ImagePaths are paths in the agent's image. "" means the default.
type ImagePaths struct {
	Install      string // the agent's installation; "": /opt/hermes
	BakedBrowser string // file that contains the path of the image's browser; "": /etc/hermes/agent-browser-executable-path
	Environment  string // directory for environment variables that the boot sets; "": /run/s6/container_environment
	Seed         string // archive of files for an empty data directory; "": /usr/share/hinit/home
	Seal         string // file that the build of the image creates last, see sealNumber; "": /usr/share/hinit/sealed
}

func (o Options) withDefaults() Options {
	o.Image.Install = cmp.Or(o.Image.Install, boot.AgentInstallDir)
	o.Image.BakedBrowser = cmp.Or(o.Image.BakedBrowser, "/etc/hermes/agent-browser-executable-path")
	o.Image.Environment = cmp.Or(o.Image.Environment, "/run/s6/container_environment")
	o.Image.Seed = cmp.Or(o.Image.Seed, boot.SeedFile)
	o.Image.Seal = cmp.Or(o.Image.Seal, "/usr/share/hinit/sealed")
	o.MaxInodes = cmp.Or(o.MaxInodes, 2_000_000)
	o.MaxTime = cmp.Or(o.MaxTime, 30*time.Minute)
	if o.Say == nil {
		o.Say = func(boot.LogLine) {}
	}
	return o
}

// bootSteps is the state that the boot steps of this package share. The steps run one after the other.
type bootSteps struct {
	Options

	homeIsLink bool
}

// CompleteBoot does the boot steps that [boot.Prepare] leaves to the boot program: steps 11 to 14, 16, 17 and 19 of contract
// section
// 2.1. It adds the results to r, the report of Prepare. Like Prepare, it abandons a step that takes too long.
func CompleteBoot(ctx context.Context, o Options, r *boot.Report) {
	o = o.withDefaults()
	p := &bootSteps{Options: o, homeIsLink: r.HomeIsLink}
	phases := []boot.Phase{{Name: "seeds", NeedsVolume: true, Run: p.createExpectedFiles}, {Name: "bootstrap", NeedsVolume: true, Run: p.writeBootstrapFiles}, {Name: "browser", Run: p.setBrowserVariable}}
	if o.ImageFillsHome {
		phases = slices.Delete(phases, 0, 2)
	}
	r.Run(ctx, o.Options, phases)
}

// FillEmptyHome copies the image's files to an empty data directory, and then sets s.FilledFromImage.
func FillEmptyHome(ctx context.Context, o Options, s *boot.Step) error {
	return (&bootSteps{Options: o.withDefaults()}).copySeed(ctx, s)
}

func (p *bootSteps) openHomeAsAgent() (*fsutil.Dir, error) { return fsutil.OpenDir(p.Home, p.Agent) }

const (
	browserVariable = "AGENT_BROWSER_EXECUTABLE_PATH"
	// maxBrowserFiles is the maximum number of files that are searched for a browser. A directory of browsers has a few thousand.
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
		if err := p.Agent.Do(func() error { // with the agent's identity, no link can lead to another user's file
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
			return nil //nolint:nilerr // a file that can't be read can't be executed either
		}
		if info, err := e.Info(); err == nil && info.Mode().Perm()&0o111 != 0 {
			found = path
			return fs.SkipAll
		}
		return nil
	})
	return found
}

// WriteVariableFiles writes the environment variables in vars to a directory, one file for each variable, for the programs of s6.
// It creates the directory if necessary. It does nothing unless it runs as root, and ignores errors.
func WriteVariableFiles(o Options, vars map[string]string) {
	o = o.withDefaults()
	if os.Geteuid() != 0 || len(vars) == 0 {
		return
	}
	d, _, err := fsutil.MakeNoLink(o.Image.Environment, 0o755, nil)
	if err != nil {
		return
	}
	defer d.Close()
	for name, value := range vars {
		_ = d.Replace(name, []byte(value), fsutil.ReplaceOptions{Mode: 0o644, NoSync: true})
	}
}
