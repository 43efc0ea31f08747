package prepare

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/account"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/container/initlog"
	"hinit/internal/fsutil"
	"hinit/internal/volume"
	"hinit/supervisor"
)

const agentUID = 10000

// messageRecorder records messages.
type messageRecorder struct {
	mu       sync.Mutex
	messages []string
}

func (t *messageRecorder) Say(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.messages = append(t.messages, fmt.Sprintf(format, args...))
}

func (t *messageRecorder) newOwnerRepairer() *OwnerRepairer {
	v := initlog.New(func() io.Writer { return io.Discard }, func(warning string) bool { t.Say("%s", warning); return true }, initlog.NewTerminationLog())
	return newOwnerRepairer(v, func(text string) { t.Say("%s", text) }, runTestJob, func(_ context.Context, profile string) { t.Say("moved %s", profile) })
}

func runTestJob(ctx context.Context, job boot.Job, take func(boot.Message)) error {
	r := volume.Repair(ctx, volume.Options{Options: job.Options}, func(now client.Repair) { take(boot.Message{Repair: &now}) })
	take(boot.Message{Repair: &r.Repair})
	if r.Changed > 0 {
		take(boot.Message{RepairSummary: r.String()})
	}
	return ctx.Err()
}

// makeVolume makes a data volume with profiles whose files belong to root, and the options to repair it.
func makeVolume(t *testing.T, profiles ...string) (home string, o boot.Options) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	base, err := os.MkdirTemp("", "owners") //nolint:usetesting // the agent must be able to reach this directory
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	home = filepath.Join(base, "data")
	for _, p := range profiles {
		makeProfile(t, home, p)
	}
	for _, dir := range []string{base, home} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	agent := boot.NewAgent(account.User{Name: "hermes", UID: agentUID, GID: agentUID, Home: home}, true)
	return home, boot.Options{Home: home, Logs: home + "/logs", User: "hermes", Agent: agent.Actor, Say: func(boot.LogLine) {}}
}

func makeProfile(t *testing.T, home, profile string) {
	t.Helper()
	dir := filepath.Join(home, "profiles", profile, "work")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("root's"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func ownerOf(t *testing.T, home, profile string) uint32 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(filepath.Join(home, "profiles", profile, "work", "file"), &st); err != nil {
		t.Fatal(err)
	}
	return st.Uid
}

func awaitCondition(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); <-time.After(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not so after 20 s", what)
		}
	}
}

func TestEverythingIsRepairedAndThenWhatAppears(t *testing.T) {
	home, o := makeVolume(t, "coder")
	messages := &messageRecorder{}
	r := messages.newOwnerRepairer()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.RepairAll(ctx, boot.Job{Options: o})
		r.RepairWanted(ctx, boot.Job{Options: o})
	}()
	awaitCondition(t, "the repair is done", r.AllRepaired)
	if uid := ownerOf(t, home, "coder"); uid != agentUID {
		t.Errorf("the file is %d's", uid)
	}
	if s := r.Status(); s.Changed == 0 || s.StopReason != "" {
		t.Errorf("the status is %+v", s)
	}
	before := *r.Status()
	makeProfile(t, home, "later")
	r.CorrectOwner(ctx, o, "later")
	awaitCondition(t, "the new profile is repaired", func() bool { return ownerOf(t, home, "later") == agentUID })
	if *r.Status() != before {
		t.Errorf("the status of the repair of everything is %+v, it was %+v", *r.Status(), before)
	}
	cancel()
	<-ended
	messages.mu.Lock()
	defer messages.mu.Unlock()
	if len(messages.messages) == 0 || !strings.HasPrefix(messages.messages[0], "ownership: ") {
		t.Errorf("it said %q", messages.messages)
	}
}

// A re-executed hinit must take over the state of a finished repair and must not begin again.
func TestTheNextProgramKnowsHowFarItCame(t *testing.T) {
	r := new(messageRecorder).newOwnerRepairer()
	if r.Status() != nil || r.AllRepaired() {
		t.Error("it knows of a repair before there was one")
	}
	r.TakeOver(&client.Repair{Examined: 3, Done: true})
	if s := r.Status(); s == nil || s.Examined != 3 || !r.AllRepaired() {
		t.Errorf("it knows %+v", s)
	}
}

// A repair that the stop of the container interrupts must cause no warning. Otherwise a CMD that ends after 50 ms leaves a
// warning to install another hinit-tools.
func TestAContainerThatStopsWarnsOfNoRepair(t *testing.T) {
	for fault, warnings := range map[error]int{supervisor.ErrStopping: 0, io.EOF: 1} {
		var messages messageRecorder
		v := initlog.New(func() io.Writer { return io.Discard }, func(warning string) bool { messages.Say("%s", warning); return true }, initlog.NewTerminationLog())
		failed := func(context.Context, boot.Job, func(boot.Message)) error {
			return fmt.Errorf("the program has failed: %w", fault)
		}
		newOwnerRepairer(v, nil, failed, nil).RepairAll(t.Context(), boot.Job{FilledFromImage: true, Options: boot.Options{Agent: fsutil.ProcessActor()}})
		if len(messages.messages) != warnings {
			t.Errorf("%v: %q", fault, messages.messages)
		}
	}
}

// A profile's home that the agent has renamed must keep its owner. The repair reports it, but must not give it to the
// agent.
func TestARenamedHomeIsReportedAndStays(t *testing.T) {
	home, o := makeVolume(t, "foo")
	o.Tenants = boot.Tenants{Enabled: true, UIDs: config.UIDs{First: 20000, Last: 20009}, ByProfile: map[string]bool{"coder": true}}
	dir := filepath.Join(home, "profiles", "foo")
	if err := os.Chown(dir, 20005, 20005); err != nil {
		t.Fatal(err)
	}
	messages := &messageRecorder{}
	o.Say = func(l boot.LogLine) { messages.messages = append(messages.messages, l.Text) }
	messages.newOwnerRepairer().CorrectOwner(t.Context(), o, "foo")
	if len(messages.messages) != 1 || !strings.Contains(messages.messages[0], "profile foo stays uid 20005's") || !strings.Contains(messages.messages[0], "hinit isolate apply foo") {
		t.Errorf("said %q", messages.messages)
	}
	if info, err := os.Lstat(dir); err != nil || info.Sys().(*syscall.Stat_t).Uid != 20005 {
		t.Errorf("the home was given away: %v", err)
	}
}
