package fleetcli

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"hinit/internal/cmdline"
	"hinit/kubernetes/api/v1alpha1"
)

func runExport(ctx context.Context, c *call) error {
	to := c.Flags.String("to", "", outsideHelp)
	pool := c.Flags.String("pool", "", "export all profiles of a `POOL`")
	limit := c.Flags.Duration("timeout", 10*time.Minute, "how long to wait for one step, as `D`")
	dry := c.Flags.Bool("dry-run", false, "print what would be done, and change nothing")
	f, names, err := c.connect(0, -1)
	if err != nil {
		return err
	}
	if (*pool == "") == (len(names) == 0) {
		return codeError{cmdline.ExitUsage, errors.New("cannot export profiles: name some, or name a pool with --pool")}
	}
	if len(names) == 0 {
		list, err := f.profiles(ctx)
		if err != nil {
			return err
		}
		for _, p := range list {
			if p.Spec.Pool == *pool {
				names = append(names, p.Name)
			}
		}
	}
	return (&exporter{f, newOutsideHinit(*to), rand.Text(), *limit}).exportAll(ctx, names, *dry)
}

// exporter is one call of `hinit-fleet export`.
type exporter struct {
	*fleet
	outside   outsideHinit
	commandID string // Random ID of this command, which marks its records on AgentProfiles, see [migrationRecord].
	timeout   time.Duration
}

// exportAll exports profiles. If dry is true, it only prints what it would do. If one of the profiles can't be exported, it
// changes nothing.
func (e *exporter) exportAll(ctx context.Context, names []string, dry bool) error {
	all, err := e.outside.profiles(ctx)
	if err != nil {
		return err
	}
	var plans []migrationPlan
	for _, name := range names {
		p, err := e.profile(ctx, name)
		if err != nil {
			return err
		}
		one := migrationPlan{from: outsideProfile{Name: name, Want: "down"}, name: name, step: "copy"}
		n := exportRecord(p)
		if p.WantsGateway() || n.wasRunning {
			one.from.Want, one.step = "up", "stop, copy, start outside"
			if !slices.ContainsFunc(all, func(there outsideProfile) bool { return there.Want != "" }) {
				one.refusal = "no hinit answers there, which could start its gateway: start its container"
			}
		}
		for _, there := range all {
			switch {
			case there.Name != name:
			case n.state != copied && there.Want == "up":
				one.refusal = "it runs outside: hinit stop " + name
			case n.state != copied:
				one.step += "; replaces the profile outside"
			}
		}
		plans = append(plans, one)
	}
	if err := e.printPlans(plans, dry); err != nil || dry {
		return err
	}
	for _, name := range names {
		if err := e.exportProfile(ctx, name); err != nil {
			return fmt.Errorf("cannot export profile %q: %w", name, err)
		}
	}
	return nil
}

// exportRecord returns the note of an earlier export. If the profile was started in the fleet since that export copied it, the
// copy is outdated. The returned note then has no state.
func exportRecord(p *v1alpha1.AgentProfile) migrationRecord {
	n := readMigrationRecord(p, v1alpha1.ExportAnnotation)
	if n.state == copied && p.DeletionTimestamp.IsZero() && p.WantsGateway() {
		n.state = copying
	}
	return n
}

// exportProfile stops a profile of the fleet, copies it to the hinit outside, and deletes its object in the cluster. If the
// copy fails, the profile runs in the fleet again. After a crash, the next call continues the export.
func (e *exporter) exportProfile(ctx context.Context, name string) error {
	n, no := migrationRecord{}, false
	err := e.update(ctx, name, func(p *v1alpha1.AgentProfile) error {
		earlier := exportRecord(p)
		n = migrationRecord{cmp.Or(earlier.state, copying), p.WantsGateway() || earlier.wasRunning, name, e.commandID}
		n.write(p, v1alpha1.ExportAnnotation)
		p.Spec.Running = &no
		return nil
	})
	var p *v1alpha1.AgentProfile
	if err == nil {
		p, err = e.copyOut(ctx, name, n)
	}
	if err != nil {
		back := e.update(context.WithoutCancel(ctx), name, func(p *v1alpha1.AgentProfile) error {
			if now := readMigrationRecord(p, v1alpha1.ExportAnnotation); now != n || now.state == copied {
				return nil // Another command continues the export.
			}
			delete(p.Annotations, v1alpha1.ExportAnnotation)
			p.Spec.Running = &n.wasRunning
			return nil
		})
		return errors.Join(err, back)
	}
	// The profile outside is now the newer one. The finalizer keeps the object and its note until the
	// gateway outside runs.
	if err := e.api.Delete(ctx, p); err != nil {
		return fmt.Errorf("%w; type the same command again", err)
	}
	if err := e.awaitCondition(ctx, e.timeout, name+" has left its host", func() (bool, string, error) {
		p, err := e.profile(ctx, name)
		return err == nil && !controllerutil.ContainsFinalizer(p, v1alpha1.Finalizer), "", err
	}); err != nil {
		return fmt.Errorf("%w; type the same command again", err)
	}
	if n.wasRunning {
		if err := e.outside(ctx, nil, nil, "start", name); err != nil {
			return fmt.Errorf("%w; type the same command again", err)
		}
	}
	keeps := "retains"
	if p.Spec.OnDelete == "Delete" {
		keeps = "has deleted"
	}
	fmt.Fprintf(e.Out, "%s has left the fleet; host %s %s its files\n", name, p.Status.Host, keeps)
	return e.update(ctx, name, func(p *v1alpha1.AgentProfile) error {
		controllerutil.RemoveFinalizer(p, v1alpha1.ExportFinalizer)
		return nil
	})
}

// copyOut copies a stopped profile to the hinit outside, unless the note n says that an earlier command has already copied
// it. It returns the AgentProfile with [v1alpha1.ExportFinalizer] and a note that the copy is complete.
func (e *exporter) copyOut(ctx context.Context, name string, n migrationRecord) (*v1alpha1.AgentProfile, error) {
	if n.state != copied {
		host, err := e.awaitStopped(ctx, e.timeout, name)
		if err != nil {
			return nil, err
		}
		before, err := e.profile(ctx, name)
		if err != nil {
			return nil, err
		}
		if err := e.outside.runPiped(ctx, false, func(archive *os.File) error {
			return e.exec(ctx, host, nil, archive, "hinit", "profile", "export", "--secrets", name)
		}, "profile", "import", "--replace", name); err != nil {
			return nil, err
		}
		if err := e.advanceMigration(ctx, name, v1alpha1.ExportAnnotation, n, copied, func(p *v1alpha1.AgentProfile) error {
			if p.Generation != before.Generation || !equality.Semantic.DeepEqual(p.Status.LastExit, before.Status.LastExit) || p.WantsGateway() {
				return errors.New("it was started or changed meanwhile")
			}
			controllerutil.AddFinalizer(p, v1alpha1.ExportFinalizer)
			return nil
		}); err != nil {
			return nil, err
		}
	}
	return e.profile(ctx, name)
}
