package volume

import (
	"cmp"
	"context"
	"slices"
	"time"

	"hinit/internal/boot"
	"hinit/internal/fsutil"
)

// Options configure the work of this package. Home, Logs, User, Agent and Env are required; other zero values mean the Hermes
// image.
type Options struct {
	boot.Options

	Image ImagePaths

	MaxInodes int64         // limit of inodes for Repair; 0: 2,000,000
	MaxTime   time.Duration // time limit of Repair; 0: 30 min
}

// ImagePaths has the paths of files in the agent's image.
type ImagePaths struct {
	Install      string // the agent's installation; "": /opt/hermes
	BakedBrowser string // file with the path of the image's browser; "": /etc/hermes/agent-browser-executable-path
	Environment  string // directory for variables that the boot finds; "": /run/s6/container_environment
	Seed         string // files for an empty data directory; "": /usr/share/hinit/home
	Seal         string // seal of the image's build; "": /usr/share/hinit/sealed
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

// seeder is the state that the phases of this package share. They run one after the other.
type seeder struct {
	Options

	linked bool // the data directory is a link, so root changes nothing in it
}

// Complete does the steps that [boot.Prepare] leaves to the boot program: steps 11 to 14, 16, 17 and 19 of contract section 2.1.
// It adds to the report of Prepare, and abandons phases by the same rules.
func Complete(ctx context.Context, o Options, r *boot.Report) {
	o = o.withDefaults()
	p := &seeder{Options: o, linked: r.Linked}
	phases := []boot.Phase{{Name: "seeds", Volume: true, Run: p.seeds}, {Name: "bootstrap", Volume: true, Run: p.bootstrap}, {Name: "browser", Run: p.browser}}
	if o.Seeds {
		phases = slices.Delete(phases, 0, 2)
	}
	r.Run(ctx, o.Options, phases)
}

// Plant is the phase that copies the image's files to an empty data directory.
func Plant(ctx context.Context, o Options, s *boot.Step) error {
	p := &seeder{Options: o.withDefaults()}
	return p.copySeed(ctx, s)
}

func (p *seeder) asAgent() (*fsutil.Dir, error) { return fsutil.OpenDir(p.Home, p.Agent) }
