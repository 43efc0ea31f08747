package fleetcli

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"hinit/internal/cmdline"
	"hinit/kubernetes/api/v1alpha1"
)

// crashed is the panic value of a command that is killed between two of its steps.
type crashed struct{}

// migrationWorld simulates the profile coder in a fleet and outside of it. Every start of a gateway
// appends a letter to its data.
type migrationWorld struct {
	t                  *testing.T
	api                client.WithWatch
	fleetUp, outsideUp bool
	fleetData, data    string
	outsideHasProfile  bool          // Whether the hinit outside of the fleet has the profile.
	newest             string        // All starts so far; only the newest data contains them all.
	inner              client.Client // API client without injected faults.
	steps, failAt      int
	fault              string
	served             string
	printed            bytes.Buffer
	drained            bool // Whether a move begins while the data is copied into the fleet.
}

func newMigrationWorld(t *testing.T) *migrationWorld {
	w := &migrationWorld{t: t, outsideHasProfile: true, fault: "none"}
	inner := fake.NewClientBuilder().WithScheme(v1alpha1.Scheme()).WithStatusSubresource(&v1alpha1.AgentProfile{}).
		WithObjects(&v1alpha1.AgentPool{ObjectMeta: metav1.ObjectMeta{Name: "pool", Namespace: "default"}}).
		Build()
	w.inner = inner
	w.api = interceptor.NewClient(inner, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			w.host(ctx, c)
			return c.Get(ctx, key, o, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if len(opts) > 0 {
				return c.Create(ctx, o, opts...) // A dry run changes nothing.
			}
			return w.step(func() error { return c.Create(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			return w.step(func() error { return c.Patch(ctx, o, patch, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return w.step(func() error { return c.Delete(ctx, o, opts...) })
		},
	})
	return w
}

// step performs one step of a command. At step failAt it fails, or kills the command.
func (w *migrationWorld) step(do func() error) error {
	w.steps++
	done := func() error {
		err := do()
		w.startIfWanted() // A host may start a profile at once, but takes a while to stop it.
		return err
	}
	if w.steps != w.failAt {
		return done()
	}
	err := errors.New("no route to host")
	if strings.HasSuffix(w.fault, "after") {
		err = errors.Join(err, done())
	}
	if strings.HasPrefix(w.fault, "crash") {
		panic(crashed{})
	}
	return err
}

func (w *migrationWorld) host(ctx context.Context, c client.Client) {
	for range 3 {
		w.pass(ctx, c)
	}
}

func (w *migrationWorld) pass(ctx context.Context, c client.Client) {
	p := &v1alpha1.AgentProfile{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: "default", Name: "coder"}, p); err != nil {
		w.fleetUp = false
		return
	}
	old := p.DeepCopy()
	switch {
	case p.DeletionTimestamp != nil:
		w.fleetUp = false
		controllerutil.RemoveFinalizer(p, v1alpha1.Finalizer)
	case !controllerutil.ContainsFinalizer(p, v1alpha1.Finalizer):
		controllerutil.AddFinalizer(p, v1alpha1.Finalizer)
	}
	if len(p.Finalizers) != len(old.Finalizers) {
		if err := c.Patch(ctx, p, client.MergeFrom(old)); err != nil {
			w.t.Error(err)
		}
		return
	}
	if p.DeletionTimestamp != nil {
		return
	}
	w.startIfWanted()
	phase := v1alpha1.PhaseStopped
	if w.fleetUp = p.WantsGateway(); w.fleetUp {
		phase = v1alpha1.PhaseRunning
	}
	if p.Status.Phase != phase || p.Status.ObservedGeneration != p.Generation {
		p.Status.ObservedGeneration = p.Generation
		p.Status.Phase, p.Status.Host, p.Status.Ready = phase, "pool-0", w.fleetUp
		if err := c.Status().Update(ctx, p); err != nil {
			w.t.Error(err)
		}
	}
}

func (w *migrationWorld) startIfWanted() {
	p := &v1alpha1.AgentProfile{}
	if err := w.inner.Get(context.Background(), client.ObjectKey{Namespace: "default", Name: "coder"}, p); err == nil && p.DeletionTimestamp == nil && p.WantsGateway() && !w.fleetUp {
		w.startGateway(&w.fleetUp, &w.fleetData, "f")
	}
}

func (w *migrationWorld) startGateway(up *bool, data *string, letter string) {
	if *data != w.newest {
		w.t.Errorf("step %d, %s: a gateway starts with data %q, and the newest is %q", w.failAt, w.fault, *data, w.newest)
	}
	*up = true
	*data += letter
	w.newest = *data
	if w.fleetUp && w.outsideUp {
		w.t.Errorf("step %d, %s: two gateways run", w.failAt, w.fault)
	}
}

// outside imitates the hinit outside of the fleet.
func (w *migrationWorld) outside(_ context.Context, in, out *os.File, words ...string) error {
	switch strings.Join(words[:min(2, len(words))], " ") {
	case "profile list":
		want := map[bool]string{true: "up", false: "down"}[w.outsideUp]
		all := []string{`{"name": "default", "want": "up"}`}
		if w.outsideHasProfile {
			all = append(all, fmt.Sprintf(`{"name": "coder", "want": %q, "served_by": %q}`, want, w.served))
		}
		_, err := fmt.Fprintf(out, "[%s]", strings.Join(all, ","))
		return err
	case "stop coder":
		return w.step(func() error { w.outsideUp = false; return nil })
	case "start coder":
		return w.step(func() error {
			if !w.outsideUp {
				w.startGateway(&w.outsideUp, &w.data, "o")
			}
			return nil
		})
	case "profile export":
		_, err := out.WriteString(w.data + ".")
		return err
	case "profile import":
		text, err := io.ReadAll(in)
		data, whole := strings.CutSuffix(string(text), ".")
		if !whole {
			return errors.New("the archive is not complete")
		}
		w.data, w.outsideHasProfile = data, true
		return err
	}
	return fmt.Errorf("unknown: %q", words)
}

func (w *migrationWorld) execute(_ context.Context, _ string, in io.Reader, out io.Writer, words ...string) (err error) {
	defer func() {
		if closer, is := out.(*os.File); is && w.steps == w.failAt {
			_ = closer.Close() // The exit of a process closes its pipe, too.
		}
	}()
	return w.step(func() error {
		if words[2] == "export" {
			_, err := io.WriteString(out, w.fleetData+".")
			return err
		}
		text, err := io.ReadAll(in)
		w.fleetData = strings.TrimSuffix(string(text), ".")
		if w.drained {
			p := &v1alpha1.AgentProfile{}
			err = errors.Join(err, w.inner.Get(context.Background(), client.ObjectKey{Namespace: "default", Name: "coder"}, p))
			p.Status.Move = &v1alpha1.Move{To: "pool-1"}
			err = errors.Join(err, w.inner.Status().Update(context.Background(), p))
		}
		return err
	})
}

// run runs an import or export, and reports whether the command was killed.
func (w *migrationWorld) run(way string, dry bool) (err error, killed bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, is := r.(crashed); !is {
				panic(r)
			}
			killed = true
		}
		w.host(context.Background(), w.inner) // The fleet reacts to the command.
	}()
	var errs bytes.Buffer
	c := &call{Call: cmdline.NewCall(cmdline.Verb{Name: way}, nil, &w.printed, &errs), namespace: "default"}
	c.Flags = flag.NewFlagSet(way, flag.ContinueOnError)
	f := &fleet{call: c, api: w.api, execute: w.execute}
	ctx := context.Background()
	if way == "export" {
		return (&exporter{f, w.outside, fmt.Sprint("by", w.steps), time.Minute}).exportAll(ctx, []string{"coder"}, dry), false
	}
	i := &importer{f, w.outside, "pool", fmt.Sprint("by", w.steps), time.Minute}
	plans, err := i.plans(ctx, nil)
	if err != nil {
		return err, false
	}
	return i.importAll(ctx, &v1alpha1.AgentPool{}, plans, dry), false
}

func (w *migrationWorld) profileExists() bool {
	return !apierrors.IsNotFound(w.api.Get(context.Background(), client.ObjectKey{Namespace: "default", Name: "coder"}, &v1alpha1.AgentProfile{}))
}

// TestAProfileIsMigratedOnceThoughTheCommandIsKilledAnywhere kills an import and an export before
// and after each step, or lets the step fail. A second run must complete the migration, and the
// gateway must never run on both sides.
func TestAProfileIsMigratedOnceThoughTheCommandIsKilledAnywhere(t *testing.T) {
	handlers := utilruntime.PanicHandlers
	utilruntime.PanicHandlers = nil // Discard the log of each simulated crash.
	defer func() { utilruntime.PanicHandlers = handlers }()
	points := 0
	for _, way := range []string{"import", "export"} {
		for _, fault := range []string{"crash before", "crash after", "error before", "error after"} {
			for at, through := 1, false; !through; at++ {
				w := newMigrationWorld(t)
				if way == "import" {
					w.startGateway(&w.outsideUp, &w.data, "o")
				} else {
					w.outsideHasProfile = false
					if err := w.api.Create(context.Background(), &v1alpha1.AgentProfile{ObjectMeta: metav1.ObjectMeta{Name: "coder", Namespace: "default"}, Spec: v1alpha1.AgentProfileSpec{Pool: "pool"}}); err != nil {
						t.Fatal(err)
					}
					w.host(context.Background(), w.inner)
				}
				w.steps, w.failAt, w.fault = 0, at, fault
				err, killed := w.run(way, false)
				through = w.steps < at
				points++
				inFleet := way == "import"
				for again := 0; err != nil || killed; again++ {
					if !killed && w.fleetUp == w.outsideUp && !strings.Contains(err.Error(), "type the same command again") && !strings.Contains(err.Error(), "cannot change profile") {
						t.Errorf("%s, %s step %d: after %v it runs in the fleet: %v, outside: %v", way, fault, at, err, w.fleetUp, w.outsideUp)
					}
					if again == 3 {
						t.Fatalf("%s, %s step %d: the command fails again and again: %v", way, fault, at, err)
					}
					w.failAt = 0
					err, killed = w.run(way, false)
					if err != nil && way == "export" && w.outsideUp && !w.profileExists() {
						break // The profile had already left the fleet.
					}
				}
				if w.fleetUp != inFleet || w.outsideUp == inFleet || w.profileExists() != inFleet {
					t.Errorf("%s, %s step %d: at the end it runs in the fleet: %v, outside: %v, and has an object: %v", way, fault, at, w.fleetUp, w.outsideUp, w.profileExists())
				}
			}
		}
	}
	if t.Logf("%d runs", points); points < 40 {
		t.Error("the commands have had too few steps")
	}
}

// TestAProfileThatWasStartedAfterAFailedExportIsCopiedAgain starts the profile in the fleet after
// an export failed. The second export must copy the newer data.
func TestAProfileThatWasStartedAfterAFailedExportIsCopiedAgain(t *testing.T) {
	for at := 1; ; at++ {
		w := newMigrationWorld(t)
		ctx, p := context.Background(), &v1alpha1.AgentProfile{ObjectMeta: metav1.ObjectMeta{Name: "coder", Namespace: "default"}, Spec: v1alpha1.AgentProfileSpec{Pool: "pool"}}
		w.outsideHasProfile = false
		if err := w.api.Create(ctx, p); err != nil {
			t.Fatal(err)
		}
		w.host(ctx, w.inner)
		w.steps, w.failAt, w.fault = 0, at, "error before"
		err, _ := w.run("export", false)
		if w.steps < at {
			if at < 5 || err != nil {
				t.Errorf("an export has %d steps, %v", w.steps, err)
			}
			return
		}
		if get := w.inner.Get(ctx, client.ObjectKey{Namespace: "default", Name: "coder"}, p); get != nil || !p.DeletionTimestamp.IsZero() {
			continue // The profile has left the fleet.
		}
		yes := true
		p.Spec.Running = &yes
		if err := w.inner.Update(ctx, p); err != nil {
			t.Fatal(err)
		}
		w.host(ctx, w.inner)
		w.failAt = 0
		if err, _ := w.run("export", false); err != nil || !w.outsideUp || w.fleetUp || w.profileExists() {
			t.Errorf("step %d: the second export: %v, outside %v, in the fleet %v", at, err, w.outsideUp, w.fleetUp)
		}
	}
}

// TestAFailedImportDeletesNothingThatAnotherCommandGoesOnWith starts the same import a second time
// while the first one is being undone. The first command must not delete the second one's object
// and data.
func TestAFailedImportDeletesNothingThatAnotherCommandGoesOnWith(t *testing.T) {
	w := newMigrationWorld(t)
	i := &importer{commandID: "first", fleet: &fleet{call: &call{namespace: "default"}, api: w.api}}
	p := i.object(migrationPlan{name: "coder"}, migrationRecord{copying, true, "coder", "second"})
	if err := w.inner.Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := i.deleteUndone(t.Context(), "coder"); !errors.Is(err, errOtherCommand) || !w.profileExists() {
		t.Errorf("the object is there: %t; %v", w.profileExists(), err)
	}
	i.commandID = "second"
	if err := i.deleteUndone(t.Context(), "coder"); err != nil || w.profileExists() {
		t.Errorf("its own: the object is there: %t; %v", w.profileExists(), err)
	}
	if err := i.deleteUndone(t.Context(), "coder"); err != nil {
		t.Error(err)
	}
}

// TestAnImportIntoAHostThatIsDrainedIsUndone checks that an import is undone if its profile begins
// to move during the copy. Otherwise the gateway could start on the other host without its data.
func TestAnImportIntoAHostThatIsDrainedIsUndone(t *testing.T) {
	w := newMigrationWorld(t)
	w.startGateway(&w.outsideUp, &w.data, "o")
	w.drained = true
	if err, _ := w.run("import", false); err == nil || !strings.Contains(err.Error(), "it left host pool-0 meanwhile") {
		t.Errorf("the import: %v", err)
	}
	if !w.outsideUp || w.fleetUp || w.profileExists() {
		t.Errorf("it runs outside: %t, in the fleet: %t, and has an object: %t", w.outsideUp, w.fleetUp, w.profileExists())
	}
}

// TestAnExportSaysWhatBecomesOfTheFiles checks that an export says whether the host retains or deletes the files.
func TestAnExportSaysWhatBecomesOfTheFiles(t *testing.T) {
	for policy, want := range map[string]string{"": "host pool-0 retains its files", "Delete": "host pool-0 has deleted its files"} {
		w := newMigrationWorld(t)
		w.outsideHasProfile = false
		p := &v1alpha1.AgentProfile{ObjectMeta: metav1.ObjectMeta{Name: "coder", Namespace: "default"}, Spec: v1alpha1.AgentProfileSpec{Pool: "pool", OnDelete: policy}}
		if err := w.api.Create(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		w.host(t.Context(), w.inner)
		if err, _ := w.run("export", false); err != nil || !strings.Contains(w.printed.String(), want) {
			t.Errorf("onDelete %q: %v, %q", policy, err, w.printed.String())
		}
	}
}

// TestADryRunSaysWhatAnImportDoesAndChangesNothing checks the dry run of an import for a profile that can be imported,
// and for one that another gateway serves.
func TestADryRunSaysWhatAnImportDoesAndChangesNothing(t *testing.T) {
	w := newMigrationWorld(t)
	w.startGateway(&w.outsideUp, &w.data, "o")
	if err, _ := w.run("import", true); err != nil || !strings.Contains(w.printed.String(), "coder    coder         up      stop, copy, start in the fleet\n") {
		t.Errorf("%v, and printed is\n%s", err, w.printed.String())
	}
	w.served = "default"
	for _, dry := range []bool{true, false} {
		if err, _ := w.run("import", dry); err == nil || !strings.Contains(err.Error(), "the gateway of default serves it") {
			t.Errorf("a profile that another gateway serves is answered with %v", err)
		}
	}
	if w.steps != 0 || !w.outsideUp || w.profileExists() {
		t.Errorf("%d steps, and the profile is in the fleet: %v", w.steps, w.profileExists())
	}
}
