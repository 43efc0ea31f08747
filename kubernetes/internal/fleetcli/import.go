package fleetcli

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"hinit/internal/cmdline"
	"hinit/kubernetes/api/v1alpha1"
)

// importer is one call of `hinit-fleet import`.
type importer struct {
	*fleet
	outside   outsideHinit
	pool      string
	commandID string // Random ID of this command, which marks its records on AgentProfiles, see [migrationRecord].
	timeout   time.Duration
}

func runImport(ctx context.Context, c *call) error {
	from := c.Flags.String("from", "", outsideHelp)
	limit := c.Flags.Duration("timeout", 10*time.Minute, "how long to wait for one step, as `D`")
	dry := c.Flags.Bool("dry-run", false, "print what would be done, and change nothing")
	image := c.Flags.String("image", "", "make the pool with this `IMAGE` if there is none")
	hosts := c.Flags.Int("hosts", 10, "if the command makes the pool, it has at most `N` hosts")
	volume := c.Flags.String("volume", "10Gi", "if the command makes the pool, each host has a volume of this `SIZE`")
	f, words, err := c.connect(1, -1)
	if err != nil {
		return err
	}
	i := &importer{f, newOutsideHinit(*from), words[0], rand.Text(), *limit}
	size, err := resource.ParseQuantity(*volume)
	if err != nil {
		return fmt.Errorf("cannot make pool %q: --volume is no size: %w", i.pool, err)
	}
	plans, err := i.plans(ctx, words[1:])
	if err != nil {
		return err
	}
	p := &v1alpha1.AgentPool{ObjectMeta: metav1.ObjectMeta{Name: i.pool, Namespace: f.namespace}, Spec: v1alpha1.AgentPoolSpec{
		Image: *image, Hosts: v1alpha1.HostRange{Min: 1, Max: int32(min(*hosts, 1<<20))}, Volume: v1alpha1.HostVolume{Size: size},
	}}
	return i.importAll(ctx, p, plans, *dry)
}

// plans returns what an import will do with each profile outside of the fleet. words names the profiles, as NAME or NAME=NEW.
// If words is empty, the result has all profiles except the root profile.
func (i *importer) plans(ctx context.Context, words []string) (plans []migrationPlan, err error) {
	all, err := i.outside.profiles(ctx)
	if err != nil {
		return nil, err
	}
	if len(words) == 0 {
		for _, p := range all {
			if p.Name != "default" {
				words = append(words, p.Name)
				continue
			}
			fmt.Fprintf(i.Err, "default stays: a fleet has no profile of that name; hinit-fleet import %s default=NAME takes it\n", i.pool)
		}
	}
	for _, word := range words {
		name, to, _ := strings.Cut(word, "=")
		at := slices.IndexFunc(all, func(p outsideProfile) bool { return p.Name == name })
		if at < 0 {
			return nil, codeError{cmdline.ExitUnknown, fmt.Errorf("cannot import profile %q: there is no such profile", name)}
		}
		one := migrationPlan{from: all[at], name: cmp.Or(to, name)}
		if one.refusal = unmovableReason(all[at], all); one.refusal == "" {
			one.step, one.refusal = i.plan(ctx, one)
		}
		plans = append(plans, one)
	}
	return plans, nil
}

// unmovableReason returns the reason why a profile can't leave the hinit outside, or "". A profile can't leave if the gateway
// of the root profile also serves it. The root profile can't leave while its gateway serves others.
func unmovableReason(p outsideProfile, all []outsideProfile) string {
	for _, one := range all {
		switch serves := one.Name != "default" && strings.Contains(one.Served, "default"); {
		case serves && one.Name == p.Name:
			return "the gateway of default serves it: give it its own first; hinit topology tells more"
		case serves && p.Name == "default":
			return "its gateway serves " + one.Name + " too"
		}
	}
	return ""
}

// plan returns what an import will do with one profile (step), or the reason why it can't import the profile (refused).
func (i *importer) plan(ctx context.Context, one migrationPlan) (step, refused string) {
	p := &v1alpha1.AgentProfile{}
	err := i.api.Get(ctx, client.ObjectKey{Namespace: i.namespace, Name: one.name}, p)
	n := readMigrationRecord(p, v1alpha1.ImportAnnotation)
	switch {
	case one.from.Want == "":
		return "", "no hinit answers there, which could keep its gateway from starting: start its container"
	case apierrors.IsNotFound(err):
		if err := i.api.Create(ctx, i.object(one, migrationRecord{}), client.DryRunAll); err != nil {
			return "", err.Error()
		}
		step = "copy"
	case err != nil:
		return "", err.Error()
	case n.source != one.from.Name || p.Spec.Pool != i.pool:
		return "", fmt.Sprintf("the fleet has another profile of that name; hinit-fleet import %s %s=NEW gives it a new one", i.pool, one.from.Name)
	case n.state == copied && one.from.Want == "up":
		return "", "it was imported before, and was started outside since: hinit stop " + one.from.Name
	case n.state == copied:
		return "nothing: it was imported before", ""
	default:
		step = "continue the copy"
	}
	if one.from.Want == "up" {
		return "stop, " + step + ", start in the fleet", ""
	}
	return step, ""
}

// importAll imports all planned profiles. If dry is true, it only prints the plans. If the pool p does not exist and p has an
// image, it creates the pool. If one of the plans is refused, it changes nothing.
func (i *importer) importAll(ctx context.Context, p *v1alpha1.AgentPool, plans []migrationPlan, dry bool) error {
	_, err := i.fleet.pool(ctx, i.pool)
	if missing, is := errors.AsType[codeError](err); is && missing.code == cmdline.ExitUnknown && p.Spec.Image != "" {
		if err = i.api.Create(ctx, p.DeepCopy(), client.DryRunAll); err == nil && dry {
			fmt.Fprintf(i.Out, "pool %s would be made with %s and at most %d hosts\n", i.pool, p.Spec.Image, p.Spec.Hosts.Max)
		}
		if err != nil {
			err = fmt.Errorf("cannot make pool %q: %w", i.pool, err)
		}
	} else {
		p = nil
	}
	if err != nil {
		return err
	}
	if err := i.printPlans(plans, dry); err != nil || dry {
		return err
	}
	if p != nil {
		if err := i.api.Create(ctx, p); err != nil {
			return fmt.Errorf("cannot make pool %q: %w", i.pool, err)
		}
	}
	for _, one := range plans {
		if err := i.importProfile(ctx, one); err != nil {
			return fmt.Errorf("cannot import profile %q: %w", one.from.Name, err)
		}
	}
	return nil
}

// object returns the AgentProfile for a profile that is being imported. The profile is stopped and has the note n. Deleting
// the object also deletes its data, so that nothing remains if the import fails.
func (i *importer) object(one migrationPlan, n migrationRecord) *v1alpha1.AgentProfile {
	no := false
	p := &v1alpha1.AgentProfile{
		ObjectMeta: metav1.ObjectMeta{Name: one.name, Namespace: i.namespace}, Spec: v1alpha1.AgentProfileSpec{Pool: i.pool, Running: &no, OnDelete: "Delete"},
	}
	n.write(p, v1alpha1.ImportAnnotation)
	return p
}

// importProfile copies a profile into a pool. It first stops the profile outside, and leaves its files in place. After an
// error, it starts the profile outside again if it ran before. After a crash, the next call continues the import.
func (i *importer) importProfile(ctx context.Context, one migrationPlan) error {
	n := migrationRecord{copying, one.from.Want == "up", one.from.Name, i.commandID}
	p, err := i.profile(ctx, one.name)
	if err == nil && p.DeletionTimestamp != nil {
		p, err = i.awaitDeleted(ctx, one.name)
	}
	switch coded, is := errors.AsType[codeError](err); {
	case is && coded.code == cmdline.ExitUnknown:
		err = i.api.Create(ctx, i.object(one, n))
	case err == nil && readMigrationRecord(p, v1alpha1.ImportAnnotation).state == copied:
		fmt.Fprintf(i.Out, "%s was imported before\n", one.name)
		return nil
	case err == nil:
		err = i.update(ctx, one.name, func(p *v1alpha1.AgentProfile) error {
			earlier := readMigrationRecord(p, v1alpha1.ImportAnnotation)
			if earlier.source != one.from.Name || earlier.state == copied {
				return errOtherCommand
			}
			n.wasRunning = n.wasRunning || earlier.wasRunning
			n.write(p, v1alpha1.ImportAnnotation)
			return nil
		})
	}
	if err != nil {
		return err
	}
	host, err := i.copyIn(ctx, one)
	if err != nil {
		return i.undoImport(ctx, one, n, err, false)
	}
	if err := i.advanceMigration(ctx, one.name, v1alpha1.ImportAnnotation, n, copied, func(p *v1alpha1.AgentProfile) error {
		if p.Status.Host != host || p.Status.Move != nil { // The fleet moved the home before the copy was complete.
			return fmt.Errorf("it left host %s meanwhile; try again when no host is drained", host)
		}
		p.Spec.Running, p.Spec.OnDelete = &n.wasRunning, ""
		return nil
	}); err != nil {
		return i.undoImport(ctx, one, n, err, true)
	}
	fmt.Fprintf(i.Out, "%s is on %s; outside of the fleet it is stopped, and keeps its files\n", one.name, host)
	return nil
}

// awaitDeleted waits until the AgentProfile of an undone import is deleted. It then returns the result of [fleet.profile].
func (i *importer) awaitDeleted(ctx context.Context, name string) (p *v1alpha1.AgentProfile, err error) {
	err2 := i.awaitCondition(ctx, i.timeout, name+" of an earlier import is deleted", func() (bool, string, error) {
		p, err = i.profile(ctx, name)
		return err != nil || p.DeletionTimestamp == nil, "", nil
	})
	return p, cmp.Or(err2, err)
}

// copyIn stops the profile outside and copies its data into the fleet. It returns the host that has the data.
func (i *importer) copyIn(ctx context.Context, one migrationPlan) (host string, err error) {
	if host, err = i.awaitStopped(ctx, i.timeout, one.name); err != nil {
		return "", err
	}
	if one.from.Want == "up" {
		if err := i.outside(ctx, nil, nil, "stop", one.from.Name); err != nil {
			return "", err
		}
	}
	if err := i.outside.runPiped(ctx, true, func(archive *os.File) error {
		return i.exec(ctx, host, archive, io.Discard, "hinit", "profile", "import", "--replace", one.name)
	}, "profile", "export", "--secrets", one.from.Name); err != nil {
		return "", err
	}
	all, err := i.outside.profiles(ctx)
	if err == nil && slices.ContainsFunc(all, func(p outsideProfile) bool { return p.Name == one.from.Name && p.Want != "down" }) {
		err = errors.New("it was started outside meanwhile")
	}
	return host, err
}

// undoImport starts the profile outside again if it ran before, and deletes its object in the fleet. If handed is true, the
// fleet may already run the profile; the object then shows which of the two may run. undoImport returns nil if the import has
// succeeded after all.
func (i *importer) undoImport(ctx context.Context, one migrationPlan, n migrationRecord, err error, handed bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), i.timeout)
	defer cancel()
	back := i.advanceMigration(ctx, one.name, v1alpha1.ImportAnnotation, n, undone, func(*v1alpha1.AgentProfile) error { return nil })
	gone, is := errors.AsType[codeError](back)
	switch {
	case errors.Is(back, errOtherCommand):
		if p, err2 := i.profile(ctx, one.name); err2 == nil && readMigrationRecord(p, v1alpha1.ImportAnnotation) == (migrationRecord{copied, n.wasRunning, n.source, n.commandID}) {
			return nil
		}
		return errors.Join(err, back)
	case back != nil && handed && (!is || gone.code != cmdline.ExitUnknown):
		return errors.Join(err, back, errors.New("the fleet may run the profile, so it stays stopped outside; type the same command again"))
	}
	if n.wasRunning {
		if err2 := i.outside(ctx, nil, nil, "start", one.from.Name); err2 != nil {
			return errors.Join(err, err2)
		}
	}
	return errors.Join(err, i.deleteUndone(ctx, one.name))
}

// deleteUndone deletes the AgentProfile of an undone import, with its data. It deletes nothing if another command has
// continued or completed the import in the meantime.
func (i *importer) deleteUndone(ctx context.Context, name string) error {
	return client.IgnoreNotFound(retry.RetryOnConflict(retry.DefaultRetry, func() error {
		p := &v1alpha1.AgentProfile{}
		if err := i.api.Get(ctx, client.ObjectKey{Namespace: i.namespace, Name: name}, p); err != nil {
			return err
		}
		if n := readMigrationRecord(p, v1alpha1.ImportAnnotation); n.commandID != i.commandID || n.state == copied {
			return errOtherCommand
		}
		return i.api.Delete(ctx, p, client.Preconditions{UID: &p.UID, ResourceVersion: &p.ResourceVersion})
	}))
}
