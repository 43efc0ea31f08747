package fleetcli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"hinit/internal/proc"
	"hinit/kubernetes/api/v1alpha1"
)

// outsideHinit runs a command of a hinit outside of the fleet. in and out may be nil.
type outsideHinit func(ctx context.Context, in, out *os.File, words ...string) error

// outsideHelp is the help of the flags --from and --to.
const outsideHelp = "run hinit outside of the fleet with `COMMAND` before it, such as \"docker exec -i agents\"; without COMMAND, it is the hinit of this machine"

// newOutsideHinit returns a function that runs commands of the hinit outside of the fleet. command is the part of the command line
// before "hinit", such as docker exec -i agents.
func newOutsideHinit(command string) outsideHinit {
	return func(ctx context.Context, in, out *os.File, words ...string) error {
		argv := slices.Concat(strings.Fields(command), []string{"hinit"}, words)
		x, err := proc.Run(ctx, proc.Spec{ID: 1, Argv: argv, Env: os.Environ(), Files: []*os.File{in, out, os.Stderr}, SameSession: true})
		if err == nil && (x.Code != 0 || x.Signal != 0) {
			err = fmt.Errorf("it ends with code %d", x.Code)
		}
		if err != nil {
			return fmt.Errorf("cannot run %q: %w", strings.Join(argv, " "), err)
		}
		return nil
	}
}

// runPiped runs a command of hinit outside of the fleet and, at the same time, the function fn. A pipe connects them. fn
// reads the command's standard output if output is true. Otherwise it writes the command's standard input.
func (o outsideHinit) runPiped(ctx context.Context, output bool, fn func(*os.File) error, words ...string) error {
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

type outsideProfile struct {
	Name   string
	Want   string
	Served string `json:"served_by"`
}

func (o outsideHinit) profiles(ctx context.Context) (all []outsideProfile, err error) {
	err = o.runPiped(ctx, true, func(out *os.File) error { return json.NewDecoder(out).Decode(&all) }, "profile", "list", "--json")
	return all, err
}

// The states of an import or export. A [migrationRecord] in an annotation of the AgentProfile records the state, so that a
// second command can continue after a crash of the first one.
const (
	copying = "copying" // The command copies the data, and the gateway in the fleet is stopped.
	undone  = "undone"  // The import failed: the command restarts the profile outside and deletes the object.
	copied  = "copied"  // The copy is complete, and the profile belongs to the destination.
)

// migrationRecord is the state of an import or export, see [v1alpha1.ImportAnnotation].
type migrationRecord struct {
	state      string
	wasRunning bool   // Whether the gateway ran before the migration, and so must run after it.
	source     string // Name of the profile outside of the fleet.
	commandID  string // Random ID of the command that wrote the note.
}

// readMigrationRecord reads a note from an annotation of an object. Without the annotation, the result has no state.
func readMigrationRecord(p *v1alpha1.AgentProfile, annotation string) (n migrationRecord) {
	up := ""
	_, _ = fmt.Sscan(p.Annotations[annotation], &n.state, &up, &n.source, &n.commandID) // An incomplete annotation counts as missing.
	n.wasRunning = up == "up"
	if n.commandID == "" {
		return migrationRecord{}
	}
	return n
}

func (n migrationRecord) write(p *v1alpha1.AgentProfile, annotation string) {
	up := "down"
	if n.wasRunning {
		up = "up"
	}
	metav1.SetMetaDataAnnotation(&p.ObjectMeta, annotation, strings.Join([]string{n.state, up, n.source, n.commandID}, " "))
}

// errOtherCommand means that another command has replaced the note of this one, and now continues the import or export.
var errOtherCommand = errors.New("another hinit-fleet continues with this profile")

// update modifies a profile by compare-and-swap: it reads the object, calls change and writes the result. If the object has
// changed in the meantime, it starts again.
func (f *fleet) update(ctx context.Context, name string, change func(*v1alpha1.AgentProfile) error) error {
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

// advanceMigration moves the import or export of a profile to another state. It replaces the note n, and modifies the profile with
// the function change in the same write. If the profile's note is no longer n, it returns [errOtherCommand].
func (f *fleet) advanceMigration(ctx context.Context, name, annotation string, n migrationRecord, state string, change func(*v1alpha1.AgentProfile) error) error {
	return f.update(ctx, name, func(p *v1alpha1.AgentProfile) error {
		now := readMigrationRecord(p, annotation)
		if now.commandID != n.commandID || now.state != n.state && now.state != state {
			return errOtherCommand
		}
		now.state = state
		now.write(p, annotation)
		return change(p)
	})
}

// awaitStopped waits until a profile has data on a host and its gateway has stopped. It returns the host.
func (f *fleet) awaitStopped(ctx context.Context, limit time.Duration, name string) (host string, err error) {
	err = f.awaitCondition(ctx, limit, name+" is stopped", func() (bool, string, error) {
		p, err := f.profile(ctx, name)
		if err != nil {
			return false, "", err
		}
		s := p.Status
		host = s.Host
		done := s.Phase == v1alpha1.PhaseStopped && s.ObservedGeneration == p.Generation && p.InstalledAssignment() == s.Assignment && s.Move == nil
		return done, s.Message, nil
	})
	return host, err
}

// migrationPlan says what an import or export will do with one profile.
type migrationPlan struct {
	from    outsideProfile // Profile outside of the fleet.
	name    string         // Name of the profile in the fleet.
	step    string         // Description of the planned step, for people.
	refusal string         // Reason for refusing the step; "" if it is possible.
}

// printPlans prints all plans if all is true, and otherwise only the refused ones. It returns an error if a plan is refused.
func (f *fleet) printPlans(plans []migrationPlan, all bool) error {
	var rows []string
	var err error
	for _, one := range plans {
		if one.refusal != "" {
			one.step = "refused: " + one.refusal
			err = cmp.Or(err, fmt.Errorf("cannot take profile %q: %s; nothing was changed", one.from.Name, one.refusal))
		}
		rows = append(rows, strings.Join([]string{one.from.Name, one.name, cmp.Or(one.from.Want, "-"), one.step}, "\t"))
	}
	if all {
		printTable(f.Out, "OUTSIDE\tIN THE FLEET\tWANTED\tSTEPS", rows)
	}
	return err
}
