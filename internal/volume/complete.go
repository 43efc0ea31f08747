package volume

import (
	"cmp"
	"context"
	"slices"
	"time"

	"hinit/internal/boot"
	"hinit/internal/fsutil"
)

// Options configures the work of this package. Home, Logs, User, Agent and Env are required. Other zero values mean the defaults
// for the Hermes image.
type Options struct {
	boot.Options

	Image ImagePaths

	MaxInodes int64         // number of files and directories after which Repair ends; 0: 2,000,000
	MaxTime   time.Duration // time limit of Repair; 0: 30 min
}

// ImagePaths contains the paths of files in the agent's image. An empty path means the default.
type ImagePaths struct {
	Install      string // the agent's installation; "": /opt/hermes
	BakedBrowser string // file with the path of the image's browser; "": /etc/hermes/agent-browser-executable-path
	Environment  string // directory for environment variables that the boot sets; "": /run/s6/container_environment
	Seed         string // archive of files for an empty data directory; "": /usr/share/hinit/home
	Seal         string // file that the build of the image creates last, see sealNumber; "": /usr/share/hinit/sealed
}

func (o Options) withDefaults() Options {
	o.Image.Install = cmp.Or(o.Image.Install, boot.Install)
	o.Image.BakedBrowser = cmp.Or(o.Image.BakedBrowser, "/etc/hermes/agent-browser-executable-path")
	o.Image.Environment = cmp.Or(o.Image.Environment, "/run/s6/container_environment")
	o.Image.Seed = cmp.Or(o.Image.Seed, boot.Seed)
	o.Image.Seal = cmp.Or(o.Image.Seal, "/usr/share/hinit/sealed")
	o.MaxInodes = cmp.Or(o.MaxInodes, 2_000_000)
	o.MaxTime = cmp.Or(o.MaxTime, 30*time.Minute)
	if o.Say == nil {
		o.Say = func(boot.Line) {}
	}
	return o
}

// bootSteps is the state that the boot steps of this package share. The steps run one after the other.
type bootSteps struct {
	Options

	linked bool // the data directory is a link, so root changes nothing in it
}

// Complete does the boot steps that [boot.Prepare] leaves to the boot program: steps 11 to 14, 16, 17 and 19 of contract
// section 2.1. It adds its results to the report r of Prepare, and abandons slow steps by the same rules.
func Complete(ctx context.Context, o Options, r *boot.Report) {
	o = o.withDefaults()
	p := &bootSteps{Options: o, linked: r.Linked}
	phases := []boot.Phase{{Name: "seeds", Volume: true, Run: p.createExpectedFiles}, {Name: "bootstrap", Volume: true, Run: p.writeBootstrapFiles}, {Name: "browser", Run: p.setBrowserVariable}}
	if o.Seeds {
		phases = slices.Delete(phases, 0, 2)
	}
	r.Run(ctx, o.Options, phases)
}

// FillEmptyHome fills an empty data directory with the image's files, and then sets s.FilledFromImage.
func FillEmptyHome(ctx context.Context, o Options, s *boot.Step) error {
	return (&bootSteps{Options: o.withDefaults()}).copySeed(ctx, s)
}

func (p *bootSteps) asAgent() (*fsutil.Dir, error) { return fsutil.OpenDir(p.Home, p.Agent) }
