package orders

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"hinit/client"
	"hinit/profiles"
)

var scheduleCount = flag.Int("schedules", 150, "how many random schedules TestDiskAndGatewayAgreeWhateverHappens tries")

// profileModel is a model of one profile. Its volume and intents are real, behind a gate that a test closes and opens. Its
// gateway is only a desired state. The clock is virtual.
type profileModel struct {
	t       *testing.T
	orders  *Queues
	store   *profiles.Store
	intents *profiles.Intents
	home    string
	log     strings.Builder

	mu             sync.Mutex
	unblocked      chan struct{} // closed when the volume answers again; nil while it answers
	writesUnderWay int
	executedOrders []*Order
	gatewayState   string
	effect         string
}

func newProfileModel(t *testing.T, home string) *profileModel {
	w := &profileModel{t: t, home: home, gatewayState: profiles.Stopped}
	w.store = profiles.Open(home, nil, "")
	w.intents = profiles.NewIntents(w.store)
	w.orders = New(w)
	return w
}

func (w *profileModel) Record(o *Order) (func() error, error) {
	w.mu.Lock()
	if w.writesUnderWay++; w.writesUnderWay > 1 {
		w.t.Errorf("%d orders are being recorded at the same time", w.writesUnderWay)
	}
	w.mu.Unlock()
	w.awaitUnblocked()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.writesUnderWay--
	}()
	sync, err := w.intents.Record(o.Profile, o.DesiredState())
	if err != nil {
		return nil, err
	}
	return func() error { w.awaitUnblocked(); return sync() }, nil
}

func (w *profileModel) Execute(o *Order) (string, error) {
	// The supervisor takes some time, so concurrent orders overtake each other.
	time.Sleep(time.Millisecond)
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.Contains(w.executedOrders, o) {
		w.t.Errorf("a %s is carried out twice", o.Verb)
	}
	w.executedOrders = append(w.executedOrders, o)
	w.gatewayState = o.DesiredState()
	return w.effect, nil
}

func (w *profileModel) RetryRecord(o *Order) { go w.recordLater(o.Profile) }

func (w *profileModel) awaitUnblocked() {
	for {
		w.mu.Lock()
		thawed := w.unblocked
		w.mu.Unlock()
		if thawed == nil {
			return
		}
		<-thawed
	}
}

func (w *profileModel) blockVolume() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unblocked == nil {
		w.unblocked = make(chan struct{})
	}
}

func (w *profileModel) unblockVolume() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unblocked != nil {
		close(w.unblocked)
		w.unblocked = nil
	}
}

func (w *profileModel) stateFile() string { return filepath.Join(w.home, "gateway_state.json") }

// failWrites makes writes of intents fail: it replaces the state file by a link, and hinit never follows a link.
func (w *profileModel) failWrites() {
	synctest.Wait()
	if info, err := os.Lstat(w.stateFile()); err == nil && info.Mode().IsRegular() {
		w.checkErrors(os.Rename(w.stateFile(), w.stateFile()+".kept"), os.Symlink("nowhere", w.stateFile()))
	}
}

func (w *profileModel) allowWrites() {
	synctest.Wait()
	if info, err := os.Lstat(w.stateFile()); err == nil && !info.Mode().IsRegular() {
		w.checkErrors(os.Rename(w.stateFile()+".kept", w.stateFile()))
	}
}

func (w *profileModel) checkErrors(errs ...error) {
	w.t.Helper()
	if err := errors.Join(errs...); err != nil {
		w.t.Fatal(err)
	}
}

// recordRetryInterval equals recordRetryPause of package gateways.
const recordRetryInterval = time.Second

func (w *profileModel) recordLater(profile string) {
	for {
		time.Sleep(recordRetryInterval)
		w.awaitUnblocked()
		if _, err := w.intents.Restore(profile, profiles.State{}); err == nil {
			return
		}
	}
}

// rewriteState acts as a gateway that reads its state file and writes it back a moment later without a lock. If drop is true, it
// leaves out desired_state.
func (w *profileModel) rewriteState(pause time.Duration, drop bool) {
	old, err := os.ReadFile(w.stateFile())
	if err != nil {
		return
	}
	time.Sleep(pause)
	w.awaitUnblocked()
	if info, err := os.Lstat(w.stateFile()); err != nil || !info.Mode().IsRegular() {
		return // the write fails like a write of a real gateway
	}
	if drop {
		old = []byte(`{"gateway_state":"running"}`)
	}
	temp := fmt.Sprintf("%s.%d", w.stateFile(), rand.Uint64())
	w.checkErrors(os.WriteFile(temp, old, 0o600), os.Rename(temp, w.stateFile()))
}

// watchState reacts to a changed state file as a Manager of package gateways does.
func (w *profileModel) watchState(ctx context.Context) {
	for ctx.Err() == nil {
		w.awaitUnblocked()
		state, _ := w.store.ReadState(profiles.Default) // without desired_state, the intent must be written again
		_, _ = w.intents.Restore(profiles.Default, state)
		time.Sleep(500 * time.Millisecond)
	}
}

// checkAgreement returns an error unless the disk and the gateway match the newest order.
func (w *profileModel) checkAgreement(want string) error {
	state, err := w.store.ReadState(profiles.Default)
	w.mu.Lock()
	defer w.mu.Unlock()
	if state.Desired != want || w.gatewayState != want {
		err = errors.Join(err, fmt.Errorf("the newest order wants %s; the disk says %q, and the gateway is wanted %s", want, state.Desired, w.gatewayState))
	}
	return err
}

// TestDiskAndGatewayAgreeWhateverHappens runs random schedules. Disk and gateway must match the newest order within a second
// after the volume has answered. A schedule has orders, clients that give up, freezes, refused writes and gateways that write
// their state file.
func TestDiskAndGatewayAgreeWhateverHappens(t *testing.T) {
	root := t.TempDir()
	if dir, err := os.MkdirTemp("/dev/shm", "orders"); err == nil { //nolint:usetesting // a write to /dev/shm waits for no disk
		root = dir
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
	}
	first := uint64(time.Now().UnixNano())
	t.Logf("seeds %d to %d", first, first+uint64(*scheduleCount)-1)
	for i := range *scheduleCount {
		seed := first + uint64(i)
		home := filepath.Join(root, fmt.Sprint(i))
		if err := os.Mkdir(home, 0o755); err != nil {
			t.Fatal(err)
		}
		synctest.Test(t, func(t *testing.T) {
			w := newProfileModel(t, home)
			w.runSchedule(rand.New(rand.NewPCG(seed, 0)))
			if t.Failed() {
				t.Logf("seed %d:\n%s", seed, w.log.String())
			}
		})
		if t.Failed() {
			return
		}
	}
}

// runSchedule runs one random schedule.
func (w *profileModel) runSchedule(r *rand.Rand) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go w.watchState(ctx)
	begin := time.Now()
	note := func(format string, args ...any) {
		fmt.Fprintf(&w.log, "%8v ", time.Since(begin))
		fmt.Fprintf(&w.log, format+"\n", args...)
	}
	want := ""
	var clients sync.WaitGroup
	for range 5 + r.IntN(25) {
		switch n := r.IntN(12); n {
		case 0, 1, 2, 3, 4:
			verb := []client.Verb{client.VerbStart, client.VerbStop, client.VerbRestart, StayDown}[r.IntN(4)]
			patience := time.Duration(r.IntN(3000)) * time.Millisecond
			note("%s, for %v", verb, patience)
			w.mu.Lock()
			before := len(w.executedOrders)
			w.mu.Unlock()
			o := w.orders.Submit(verb, "gateway-default", profiles.Default, patience, nil)
			want = o.DesiredState()
			clients.Go(func() { w.runClient(o, verb, patience, before) })
		case 5, 6:
			note("freeze")
			w.blockVolume()
		case 7:
			note("refuse")
			w.failWrites()
		case 8:
			pause := time.Duration(r.IntN(800)) * time.Millisecond
			drop := r.IntN(2) == 0
			note("rewrite after %v, drop %v", pause, drop)
			clients.Go(func() { w.rewriteState(pause, drop) })
		default:
			note("thaw")
			w.allowWrites()
			w.unblockVolume()
			if want != "" && r.IntN(2) == 0 {
				w.awaitAgreement(want, note)
			}
		}
		time.Sleep(time.Duration(r.IntN(r.IntN(3)*700+10)) * time.Millisecond)
		if n := w.queueCount(); n > 1 {
			w.t.Errorf("one profile has %d queues", n)
		}
	}
	w.allowWrites()
	w.unblockVolume()
	note("the end")
	clients.Wait()
	if want != "" {
		w.awaitAgreement(want, note)
	}
	cancel()
	time.Sleep(5 * time.Second)
	synctest.Wait()
	if n := w.queueCount(); n > 0 {
		w.t.Errorf("%d queues are left", n)
	}
}

// awaitAgreement fails the test unless disk, gateway and newest order agree a second after the volume has answered. A delayed
// write of a gateway counts as an answer.
func (w *profileModel) awaitAgreement(want string, note func(string, ...any)) {
	time.Sleep(800*time.Millisecond + recordRetryInterval)
	synctest.Wait()
	if err := w.checkAgreement(want); err != nil {
		note("%v", err)
		w.t.Error(err)
	}
}

// runClient waits for the result of an order, at most for patience, and checks that the result is true. before is the number of
// orders carried out before this one.
func (w *profileModel) runClient(o *Order, verb client.Verb, patience time.Duration, before int) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	begin := time.Now()
	err := w.orders.Wait(ctx, o)
	if took := time.Since(begin); took > patience {
		w.t.Errorf("%s was answered after %v, not %v", verb, took, patience)
	}
	w.orders.mu.Lock()
	defer w.orders.mu.Unlock()
	for o.replacedBy != nil {
		o = o.replacedBy
	}
	clientErr := (*client.Error)(nil)
	switch late := errors.As(err, &clientErr) && clientErr.Kind == client.KindTimeout; {
	case err == nil && !(o.recorded && o.executed):
		w.t.Errorf("%s is said to be done: recorded %v, carried out %v", verb, o.recorded, o.executed)
	case err == nil && !w.wasExecuted(o, before):
		w.t.Errorf("a %s that is said to be done was carried out before it was given", verb)
	case late && o.DesiredState() == profiles.Stopped && o.unrecordedAt.Before(time.Now()) && !o.passClaimed && w.newestOrder() == o:
		w.t.Errorf("the time of a %s is over, and it was not carried out: %v", verb, err)
	}
}

func (w *profileModel) wasExecuted(o *Order, after int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Index(w.executedOrders, o) >= after
}

func (w *profileModel) queueCount() int {
	w.orders.mu.Lock()
	defer w.orders.mu.Unlock()
	return len(w.orders.queues)
}

func (w *profileModel) newestOrder() *Order {
	if q := w.orders.queues[profiles.Default]; q != nil {
		return q.newestOrder()
	}
	return nil
}

// A stop whose record waits for a frozen volume must still signal the gateway, and the answer must say both.
func TestAStopOnAFrozenVolumeReachesTheGatewayAndSaysSo(t *testing.T) {
	home := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newProfileModel(t, home)
		w.effect = "gateway-default got TERM"
		give := func(verb client.Verb, patience time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			return w.orders.Wait(ctx, w.orders.Submit(verb, "gateway-default", profiles.Default, patience, nil))
		}
		w.checkErrors(give("start", time.Second), w.checkAgreement(profiles.Running))
		w.blockVolume()
		for _, patience := range []time.Duration{2 * time.Second, 300 * time.Millisecond} {
			err := give("stop", patience)
			const said = "the stop is under way: gateway-default got TERM; it is not recorded yet, because the data volume has not answered yet"
			if err == nil || !strings.HasPrefix(err.Error(), said) || w.gatewayState != profiles.Stopped {
				t.Errorf("within %v: %v; the gateway is wanted %s", patience, err, w.gatewayState)
			}
		}
		if err := give("start", time.Second); err == nil || !strings.HasPrefix(err.Error(), "the start waits, because the data volume has not answered yet") {
			t.Errorf("a start: %v", err)
		}
		if err := give("stop", time.Second); err == nil || w.gatewayState != profiles.Stopped {
			t.Errorf("the start that a stop has replaced: %v, and the gateway is wanted %s", err, w.gatewayState)
		}
		w.unblockVolume()
		synctest.Wait()
		time.Sleep(10 * time.Millisecond)
		w.checkErrors(w.checkAgreement(profiles.Stopped))
	})
}

// Of a thousand orders for one profile on a frozen volume, only one is carried out. The other clients must learn which order
// replaced theirs.
func TestAFrozenVolumeBuildsUpNoWork(t *testing.T) {
	home := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newProfileModel(t, home)
		w.blockVolume()
		var given []*Order
		for i := range 1001 {
			given = append(given, w.orders.Submit([]client.Verb{client.VerbStart, client.VerbStop}[i%2], "gateway-default", profiles.Default, 0, nil))
			synctest.Wait()
			if n := len(w.orders.queues[profiles.Default].waiting); n > maxQueuedOrders {
				t.Fatalf("%d orders wait", n)
			}
		}
		time.Sleep(stopTimeout / 2)
		for range 3 { // a start must replace the stop before the time limit of the stop
			given = append(given, w.orders.Submit("start", "gateway-default", profiles.Default, 0, nil))
		}
		time.Sleep(stopTimeout)
		w.unblockVolume()
		for i, o := range given {
			err := w.orders.Wait(t.Context(), o)
			start := i%2 == 0 || i > 1000
			switch superseded := err != nil && strings.HasPrefix(err.Error(), "superseded: gateway-default was asked to "); {
			case i == len(given)-1 && err != nil, err != nil && !superseded, err == nil && !start:
				t.Fatalf("order %d: %v", i, err)
			}
		}
		w.checkErrors(w.checkAgreement(profiles.Running))
		if len(w.executedOrders) != 1 {
			t.Errorf("the supervisor was asked %d times", len(w.executedOrders))
		}
	})
}

// While nothing delays them, all orders must be carried out in order. If a newer start replaced a restart, that restart would
// be lost.
func TestOrdersAreCarriedOutAsTheyComeWhileTheVolumeAnswers(t *testing.T) {
	home := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newProfileModel(t, home)
		verbs := []client.Verb{"start", "stop", "start", "restart", "start", StayDown, "stop", "restart"}
		var given []*Order
		for _, verb := range verbs {
			given = append(given, w.orders.Submit(verb, "gateway-default", profiles.Default, 0, nil))
		}
		for i, o := range given {
			if err := w.orders.Wait(t.Context(), o); err != nil {
				t.Errorf("%s: %v", verbs[i], err)
			}
		}
		var acted []client.Verb
		for _, o := range w.executedOrders {
			acted = append(acted, o.Verb)
		}
		if !slices.Equal(acted, verbs) {
			t.Errorf("carried out were %v", acted)
		}
		w.checkErrors(w.checkAgreement(profiles.Running))
	})
}

// A re-executed hinit must carry out waiting orders, although no client waits for their results.
func TestAnImageTakesOverWhatIsNotDone(t *testing.T) {
	home := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newProfileModel(t, home)
		w.blockVolume()
		w.orders.Submit("start", "gateway-default", profiles.Default, 0, nil)
		w.orders.Submit("stop", "gateway-default", profiles.Default, 0, nil)
		time.Sleep(2 * stopTimeout)
		if got := fmt.Sprint(w.orders.Unfinished()); got != "[{stop gateway-default default <nil>}]" {
			t.Errorf("unfinished are %s", got)
		}
		w.unblockVolume()
		time.Sleep(time.Second)
		if got := w.orders.Unfinished(); len(got) > 0 {
			t.Errorf("unfinished are still %v", got)
		}
	})
}
