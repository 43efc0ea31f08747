package fleetcli

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"hinit/internal/cmdline"
	"hinit/internal/proc"
	"hinit/kubernetes/api/v1alpha1"
)

// outsideHinit runs a command of a hinit outside of the fleet. in and out may be nil.
type outsideHinit func(ctx context.Context, in, out *os.File, words ...string) error

// outside returns the hinit that a command line reaches: the words before "hinit", such as docker exec -i agents.
func outside(command string) outsideHinit {
	return func(ctx context.Context, in, out *os.File, words ...string) error {
		argv := slices.Concat(strings.Fields(command), []string{"hinit"}, words)
		x, err := proc.Run(ctx, proc.Spec{ID: 1, Argv: argv, Env: os.Environ(), Files: []*os.File{in, out, os.Stderr}, Attached: true})
		if err == nil && (x.Code != 0 || x.Signal != 0) {
			err = fmt.Errorf("it ends with code %d", x.Code)
		}
		if err != nil {
			return fmt.Errorf("cannot run %q: %w", strings.Join(argv, " "), err)
		}
		return nil
	}
}

// piped runs a hinit command outside of the fleet, and calls fn while the command runs. The file passed to fn is a pipe: the
// command's standard output if output is true, otherwise its standard input.
func (o outsideHinit) piped(ctx context.Context, output bool, fn func(*os.File) error, words ...string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	mine, in, out := w, r, (*os.File)(nil)
	if output {
		mine, in, out = r, nil, w
	}
	ended := make(chan error, 1)
	go func() {
		err := o(ctx, in, out, words...)
		_ = cmp.Or(in, out).Close()
		ended <- err
	}()
	err = fn(mine)
	return errors.Join(err, mine.Close(), <-ended)
}

// outsideProfile is a profile outside of the fleet, as hinit profile list prints it.
type outsideProfile struct {
	Name   string
	Want   string
	Served string `json:"served_by"`
}

func (o outsideHinit) profiles(ctx context.Context) (all []outsideProfile, err error) {
	err = o.piped(ctx, true, func(out *os.File) error { return json.NewDecoder(out).Decode(&all) }, "profile", "list", "--json")
	return all, err
}

// The states of an import or export. A [note] records the state in an annotation of the AgentProfile, so that a second command goes
// on after a crash of the first one.
const (
	copying = "copying" // the data is being copied; the gateway in the fleet is stopped
	undone  = "undone"  // the import has failed; the profile outside is started again, and the object deleted
	copied  = "copied"  // the copy is complete, and the other side has the profile
)

// note is the state of an import or export.
type note struct {
	state string
	up    bool   // the gateway ran before
	from  string // the name of the profile outside
	by    string // identifies the command that wrote the note
}

// readNote reads a note from an annotation of an object. It returns a note without a state if there is none.
func readNote(p *v1alpha1.AgentProfile, annotation string) (n note) {
	up := ""
	_, _ = fmt.Sscan(p.Annotations[annotation], &n.state, &up, &n.from, &n.by) // an incomplete note is as none
	n.up = up == "up"
	if n.by == "" {
		return note{}
	}
	return n
}

func (n note) write(p *v1alpha1.AgentProfile, annotation string) {
	up := "down"
	if n.up {
		up = "up"
	}
	metav1.SetMetaDataAnnotation(&p.ObjectMeta, annotation, strings.Join([]string{n.state, up, n.from, n.by}, " "))
}

// errTaken means that the note of an object is no longer the one that this command wrote.
var errTaken = errors.New("another hinit-fleet goes on with this profile")

// change modifies the profile called name by compare-and-swap, and writes the result. Another writer makes it read the object
// and call change again.
func (f *fleet) change(ctx context.Context, name string, change func(*v1alpha1.AgentProfile) error) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		p, err := f.profile(ctx, name)
		if err != nil {
			return err
		}
		old := p.DeepCopy()
		if err := change(p); err != nil {
			return err
		}
		if err := f.api.Patch(ctx, p, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{})); err != nil {
			return fmt.Errorf("cannot change profile %q: %w", name, err)
		}
		return nil
	})
}

// advance replaces the note of a profile, and changes its spec. It returns [errTaken] if the note isn't n any more.
func (f *fleet) advance(ctx context.Context, name, annotation string, n note, state string, change func(*v1alpha1.AgentProfile) error) error {
	return f.change(ctx, name, func(p *v1alpha1.AgentProfile) error {
		now := readNote(p, annotation)
		if now.by != n.by || now.state != n.state && now.state != state {
			return errTaken
		}
		now.state = state
		now.write(p, annotation)
		return change(p)
	})
}

// stopped waits, for at most limit, until a profile has data on a host and its gateway has stopped. It returns the host's name.
func (f *fleet) stopped(ctx context.Context, limit time.Duration, name string) (host string, err error) {
	err = f.wait(ctx, limit, name+" is stopped", func() (bool, string, error) {
		p, err := f.profile(ctx, name)
		if err != nil {
			return false, "", err
		}
		s := p.Status
		host = s.Host
		done := s.Phase == v1alpha1.PhaseStopped && s.ObservedGeneration == p.Generation && s.Installed == s.Assignment && s.Move == nil
		return done, s.Message, nil
	})
	return host, err
}

// importer is one hinit-fleet import.
type importer struct {
	*fleet
	o     outsideHinit
	pool  string
	by    string // identifies this command in notes
	limit time.Duration
}

// planned is a profile that an import or export is about.
type planned struct {
	from    outsideProfile
	name    string // in the fleet
	step    string // what happens, for people
	refused string // why it can't happen, or ""
}

func runImport(ctx context.Context, c *call) error {
	from := c.Flags.String("from", "", "the words before hinit that reach the other one: `COMMAND`, such as \"docker exec -i agents\"; none is this machine")
	limit := c.Flags.Duration("timeout", 10*time.Minute, "how long to wait for one step, as `D`")
	dry := c.Flags.Bool("dry-run", false, "print what would be done, and change nothing")
	image := c.Flags.String("image", "", "make the pool with this `IMAGE` if there is none")
	hosts := c.Flags.Int("hosts", 10, "the most hosts of a pool that is made: `N`")
	volume := c.Flags.String("volume", "10Gi", "the size of a volume of a pool that is made, as `SIZE`")
	f, words, err := c.begin(1, -1)
	if err != nil {
		return err
	}
	i := &importer{f, outside(*from), words[0], rand.Text(), *limit}
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

// plans says what an import does with the profiles outside: those in words, as NAME or NAME=NEW, or all but the root profile.
func (i *importer) plans(ctx context.Context, words []string) (plans []planned, err error) {
	all, err := i.o.profiles(ctx)
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
			return nil, codeError{cmdline.Unknown, fmt.Errorf("cannot import profile %q: there is no such profile", name)}
		}
		one := planned{from: all[at], name: cmp.Or(to, name)}
		if one.refused = servedByAnother(all[at], all); one.refused == "" {
			one.step, one.refused = i.plan(ctx, one)
		}
		plans = append(plans, one)
	}
	return plans, nil
}

// servedByAnother says why a profile can't leave because of the gateway of the root profile, which may serve others.
func servedByAnother(p outsideProfile, all []outsideProfile) string {
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

// plan says what an import does with one profile, or why it can't.
func (i *importer) plan(ctx context.Context, one planned) (step, refused string) {
	p := &v1alpha1.AgentProfile{}
	err := i.api.Get(ctx, client.ObjectKey{Namespace: i.namespace, Name: one.name}, p)
	n := readNote(p, v1alpha1.ImportAnnotation)
	switch {
	case one.from.Want == "":
		return "", "no hinit answers there, which could keep its gateway from starting: start its container"
	case apierrors.IsNotFound(err):
		if err := i.api.Create(ctx, i.object(one, note{}), client.DryRunAll); err != nil {
			return "", err.Error()
		}
		step = "copy"
	case err != nil:
		return "", err.Error()
	case n.from != one.from.Name || p.Spec.Pool != i.pool:
		return "", fmt.Sprintf("the fleet has another profile of that name; hinit-fleet import %s %s=NEW gives it a new one", i.pool, one.from.Name)
	case n.state == copied && one.from.Want == "up":
		return "", "it was imported before, and was started outside since: hinit stop " + one.from.Name
	case n.state == copied:
		return "nothing: it was imported before", ""
	default:
		step = "go on to copy"
	}
	if one.from.Want == "up" {
		return "stop, " + step + ", start in the fleet", ""
	}
	return step, ""
}

// importAll carries out plans, or prints them if dry is true. It makes the pool p if there is none and p has an image. It changes
// nothing if one of the plans is refused.
func (i *importer) importAll(ctx context.Context, p *v1alpha1.AgentPool, plans []planned, dry bool) error {
	_, err := i.fleet.pool(ctx, i.pool)
	if missing, is := errors.AsType[codeError](err); is && missing.code == cmdline.Unknown && p.Spec.Image != "" {
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

// printPlans prints plans if all is true, and returns an error if one is refused.
func (f *fleet) printPlans(plans []planned, all bool) error {
	var rows []string
	var err error
	for _, one := range plans {
		if one.refused != "" {
			one.step = "refused: " + one.refused
			err = cmp.Or(err, fmt.Errorf("cannot take profile %q: %s; nothing was changed", one.from.Name, one.refused))
		}
		rows = append(rows, strings.Join([]string{one.from.Name, one.name, cmp.Or(one.from.Want, "-"), one.step}, "\t"))
	}
	if all {
		table(f.Out, "OUTSIDE\tIN THE FLEET\tWANTED\tSTEPS", rows)
	}
	return err
}

// object returns the AgentProfile of a profile that is imported: stopped, with a note. The data goes with it if the import fails.
func (i *importer) object(one planned, n note) *v1alpha1.AgentProfile {
	no := false
	p := &v1alpha1.AgentProfile{
		ObjectMeta: metav1.ObjectMeta{Name: one.name, Namespace: i.namespace}, Spec: v1alpha1.AgentProfileSpec{Pool: i.pool, Running: &no, OnDelete: "Delete"},
	}
	n.write(p, v1alpha1.ImportAnnotation)
	return p
}

// importProfile copies an outside profile into a pool. It stops the outside profile first, and leaves its files in place. After
// an error, the outside profile is started again if it ran before. After a crash, the next call goes on.
func (i *importer) importProfile(ctx context.Context, one planned) error {
	n := note{copying, one.from.Want == "up", one.from.Name, i.by}
	p, err := i.profile(ctx, one.name)
	if err == nil && p.DeletionTimestamp != nil {
		p, err = i.gone(ctx, one.name)
	}
	switch coded, is := errors.AsType[codeError](err); {
	case is && coded.code == cmdline.Unknown:
		err = i.api.Create(ctx, i.object(one, n))
	case err == nil && readNote(p, v1alpha1.ImportAnnotation).state == copied:
		fmt.Fprintf(i.Out, "%s was imported before\n", one.name)
		return nil
	case err == nil:
		err = i.change(ctx, one.name, func(p *v1alpha1.AgentProfile) error {
			earlier := readNote(p, v1alpha1.ImportAnnotation)
			if earlier.from != one.from.Name || earlier.state == copied {
				return errTaken
			}
			n.up = n.up || earlier.up
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
	if err := i.advance(ctx, one.name, v1alpha1.ImportAnnotation, n, copied, func(p *v1alpha1.AgentProfile) error {
		p.Spec.Running, p.Spec.OnDelete = &n.up, ""
		return nil
	}); err != nil {
		return i.undoImport(ctx, one, n, err, true)
	}
	fmt.Fprintf(i.Out, "%s is on %s; outside of the fleet it is stopped, and keeps its files\n", one.name, host)
	return nil
}

// gone waits until the object of an import that was undone is deleted. It returns what [fleet.profile] returns then.
func (i *importer) gone(ctx context.Context, name string) (p *v1alpha1.AgentProfile, err error) {
	err2 := i.wait(ctx, i.limit, name+" of an earlier import is deleted", func() (bool, string, error) {
		p, err = i.profile(ctx, name)
		return err != nil || p.DeletionTimestamp == nil, "", nil
	})
	return p, cmp.Or(err2, err)
}

// copyIn stops the outside profile and copies its data into the fleet. It returns the name of the host that has the data.
func (i *importer) copyIn(ctx context.Context, one planned) (host string, err error) {
	if host, err = i.stopped(ctx, i.limit, one.name); err != nil {
		return "", err
	}
	if one.from.Want == "up" {
		if err := i.o(ctx, nil, nil, "stop", one.from.Name); err != nil {
			return "", err
		}
	}
	if err := i.o.piped(ctx, true, func(archive *os.File) error {
		return i.exec(ctx, host, archive, io.Discard, "hinit", "profile", "import", "--replace", one.name)
	}, "profile", "export", "--secrets", one.from.Name); err != nil {
		return "", err
	}
	all, err := i.o.profiles(ctx)
	if err == nil && slices.ContainsFunc(all, func(p outsideProfile) bool { return p.Name == one.from.Name && p.Want != "down" }) {
		err = errors.New("it was started outside meanwhile")
	}
	return host, err
}

// undoImport starts the outside profile again if it ran before, and deletes the object in the fleet. handed is whether the fleet may
// already have begun to run the profile; then the object decides. undoImport returns nil if the import has succeeded.
func (i *importer) undoImport(ctx context.Context, one planned, n note, err error, handed bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), i.limit)
	defer cancel()
	back := i.advance(ctx, one.name, v1alpha1.ImportAnnotation, n, undone, func(*v1alpha1.AgentProfile) error { return nil })
	gone, is := errors.AsType[codeError](back)
	switch {
	case errors.Is(back, errTaken):
		if p, err2 := i.profile(ctx, one.name); err2 == nil && readNote(p, v1alpha1.ImportAnnotation) == (note{copied, n.up, n.from, n.by}) {
			return nil
		}
		return errors.Join(err, back)
	case back != nil && handed && (!is || gone.code != cmdline.Unknown):
		return errors.Join(err, back, errors.New("the fleet may run the profile, so it stays stopped outside; type the same command again"))
	}
	if n.up {
		if err2 := i.o(ctx, nil, nil, "start", one.from.Name); err2 != nil {
			return errors.Join(err, err2)
		}
	}
	return errors.Join(err, client.IgnoreNotFound(i.api.Delete(ctx, &v1alpha1.AgentProfile{ObjectMeta: metav1.ObjectMeta{Name: one.name, Namespace: i.namespace}})))
}

func runExport(ctx context.Context, c *call) error {
	to := c.Flags.String("to", "", "the words before hinit that reach the other one: `COMMAND`, such as \"docker exec -i agents\"; none is this machine")
	pool := c.Flags.String("pool", "", "export all profiles of a `POOL`")
	limit := c.Flags.Duration("timeout", 10*time.Minute, "how long to wait for one step, as `D`")
	dry := c.Flags.Bool("dry-run", false, "print what would be done, and change nothing")
	f, names, err := c.begin(0, -1)
	if err != nil {
		return err
	}
	if (*pool == "") == (len(names) == 0) {
		return codeError{cmdline.WrongUsage, errors.New("cannot export profiles: name some, or name a pool with --pool")}
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
	return (&exporter{f, outside(*to), rand.Text(), *limit}).exportAll(ctx, names, *dry)
}

// exporter is one hinit-fleet export.
type exporter struct {
	*fleet
	o     outsideHinit
	by    string // identifies this command in notes
	limit time.Duration
}

// exportAll exports profiles, or prints what would be done if dry is true. It changes nothing if one profile can't be exported.
func (e *exporter) exportAll(ctx context.Context, names []string, dry bool) error {
	all, err := e.o.profiles(ctx)
	if err != nil {
		return err
	}
	var plans []planned
	for _, name := range names {
		p, err := e.profile(ctx, name)
		if err != nil {
			return err
		}
		one := planned{from: outsideProfile{Name: name, Want: "down"}, name: name, step: "copy"}
		n := readNote(p, v1alpha1.ExportAnnotation)
		up := p.Wanted() || n.up
		if up {
			one.from.Want, one.step = "up", "stop, copy, start outside"
		}
		for _, there := range all {
			switch {
			case there.Name != name:
			case n.state != copied && there.Want == "up":
				one.refused = "it runs outside: hinit stop " + name
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

// exportProfile stops a profile of the fleet, copies it to the outside hinit, and deletes its object in the cluster. If the copy
// fails, the profile runs in the fleet again as before. After a crash, the next call goes on.
func (e *exporter) exportProfile(ctx context.Context, name string) error {
	n, no := note{}, false
	err := e.change(ctx, name, func(p *v1alpha1.AgentProfile) error {
		earlier := readNote(p, v1alpha1.ExportAnnotation)
		n = note{cmp.Or(earlier.state, copying), p.Wanted() || earlier.up, name, e.by}
		n.write(p, v1alpha1.ExportAnnotation)
		p.Spec.Running = &no
		return nil
	})
	var p *v1alpha1.AgentProfile
	if err == nil {
		p, err = e.copyOut(ctx, name, n)
	}
	if err != nil {
		back := e.change(context.WithoutCancel(ctx), name, func(p *v1alpha1.AgentProfile) error {
			if now := readNote(p, v1alpha1.ExportAnnotation); now != n || now.state == copied {
				return nil // the copy is complete, or another command goes on
			}
			delete(p.Annotations, v1alpha1.ExportAnnotation)
			p.Spec.Running = &n.up
			return nil
		})
		return errors.Join(err, back)
	}
	// From here on the outside profile is the newer one. The finalizer keeps the note until its gateway was started.
	if err := e.api.Delete(ctx, p); err != nil {
		return fmt.Errorf("%w; type the same command again", err)
	}
	if err := e.wait(ctx, e.limit, name+" has left its host", func() (bool, string, error) {
		p, err := e.profile(ctx, name)
		return err == nil && !controllerutil.ContainsFinalizer(p, v1alpha1.Finalizer), "", err
	}); err != nil {
		return fmt.Errorf("%w; type the same command again", err)
	}
	if n.up {
		if err := e.o(ctx, nil, nil, "start", name); err != nil {
			return fmt.Errorf("%w; type the same command again", err)
		}
	}
	fmt.Fprintf(e.Out, "%s has left the fleet; host %s retains its files\n", name, p.Status.Host)
	return e.change(ctx, name, func(p *v1alpha1.AgentProfile) error {
		controllerutil.RemoveFinalizer(p, v1alpha1.ExportFinalizer)
		return nil
	})
}

// copyOut copies a stopped profile to the outside hinit, unless n says that an earlier command has done so. It returns the object,
// which then has the note of a complete copy and a finalizer.
func (e *exporter) copyOut(ctx context.Context, name string, n note) (*v1alpha1.AgentProfile, error) {
	if n.state != copied {
		host, err := e.stopped(ctx, e.limit, name)
		if err != nil {
			return nil, err
		}
		before, err := e.profile(ctx, name)
		if err != nil {
			return nil, err
		}
		if err := e.o.piped(ctx, false, func(archive *os.File) error {
			return e.exec(ctx, host, nil, archive, "hinit", "profile", "export", "--secrets", name)
		}, "profile", "import", "--replace", name); err != nil {
			return nil, err
		}
		if err := e.advance(ctx, name, v1alpha1.ExportAnnotation, n, copied, func(p *v1alpha1.AgentProfile) error {
			if p.Generation != before.Generation || !equality.Semantic.DeepEqual(p.Status.LastExit, before.Status.LastExit) || p.Wanted() {
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
