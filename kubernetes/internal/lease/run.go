package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"hinit/internal/pause"
)

// Run acquires the Lease and holds it until ctx ends. Then it releases the Lease. So everything that depends on the Lease
// must have ended before the caller cancels ctx. log receives messages for the operator.
func Run(ctx context.Context, s Settings, log func(format string, args ...any)) error {
	s.API.Timeout = s.renewDeadline() / 2
	client, err := coordination.NewForConfig(s.API)
	if err != nil {
		return fmt.Errorf("cannot make a client of the API server: %w", err)
	}
	init, err := dial(s.Socket)
	if err != nil {
		return err
	}
	defer init.close()
	lock := &reportingLock{
		Interface: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name}, Client: client, LockConfig: resourcelock.ResourceLockConfig{Identity: s.Identity},
		},
		settings: s, init: init, log: log, guard: guard{log: log},
	}
	go lock.guard.watch(ctx)
	if err := init.send("READY=1"); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if err := errors.Join(lock.acquire(ctx), lock.renew(ctx)); err != nil {
			return err
		}
	}
	return lock.releaseLease(context.WithoutCancel(ctx))
}

// renewDeadline returns how long the holder tries to renew the Lease before it gives up.
func (s *Settings) renewDeadline() time.Duration { return s.Duration * 2 / 3 }

// stopMargin returns how long before the end of the Lease the init must begin to kill its processes. On a busy machine,
// killing takes hundreds of milliseconds, however short the Lease is.
func (s *Settings) stopMargin() time.Duration {
	return max(s.Duration/5, min(time.Second, s.Duration/3))
}

// elect runs client-go's leader election with the durations in the settings. It calls began when this pod holds the Lease.
func (l *reportingLock) elect(ctx context.Context, retry time.Duration, onAcquired func()) error {
	e, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: l, LeaseDuration: l.settings.Duration, RenewDeadline: l.settings.renewDeadline(), RetryPeriod: retry, Name: l.settings.Name,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) { onAcquired() }, OnStoppedLeading: func() {}},
	})
	if err != nil {
		return fmt.Errorf("cannot begin the election: %w", err)
	}
	e.Run(ctx)
	return nil
}

// retryInterval is the shortest time between two requests of a pod that waits for the Lease; client-go takes up to 2.2 times
// as long. It delays a takeover twice: the pod notices both the last renewal and the end of the Lease late. It is short,
// because a read costs the API server little.
const retryInterval = 150 * time.Millisecond

// acquire waits until this pod holds the Lease.
func (l *reportingLock) acquire(ctx context.Context) error {
	ctx, got := context.WithCancel(ctx)
	defer got()
	return l.elect(ctx, min(retryInterval, l.settings.Duration/20), got)
}

// renew renews the Lease until that has failed for renewDeadline, or until another pod holds the Lease. In the second case it
// returns at once, so that this pod begins to wait. client-go counts the other pod's Lease from the time at which it first
// sees it. A later return would delay the next takeover by up to two thirds of a Lease.
func (l *reportingLock) renew(ctx context.Context) error {
	if ctx.Err() != nil {
		return nil
	}
	ctx, l.onLost = context.WithCancel(ctx)
	defer func() { l.onLost(); l.onLost = nil }()
	return l.elect(ctx, l.settings.Duration*2/15, func() {})
}

// reportingLock is a lock of client-go that tells the init the result of each request. client-go calls it from one goroutine
// at a time.
type reportingLock struct {
	resourcelock.Interface

	settings Settings
	init     *notifier
	log      func(format string, args ...any)
	guard    guard

	reportedHolder string // Holder that was last reported to the init; "": none.
	holds          bool   // Whether the log says that this pod holds the Lease.
	loggedTrouble  string // Problem that was last logged; "": none.
	onLost         func() // Ends the renewal; nil while this pod waits for the Lease.
}

// Create implements [resourcelock.Interface].
func (l *reportingLock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	began := boottime()
	return l.reportWrite(ctx, began, r, l.Interface.Create(ctx, r))
}

// Update implements [resourcelock.Interface].
func (l *reportingLock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	began := boottime()
	return l.reportWrite(ctx, began, r, l.Interface.Update(ctx, r))
}

// Get implements [resourcelock.Interface].
func (l *reportingLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	r, raw, err := l.Interface.Get(ctx)
	if apierrors.IsNotFound(err) {
		return r, raw, err // The Lease does not exist yet; client-go creates it.
	}
	l.reportTrouble(ctx, err)
	if err == nil && r.HolderIdentity != "" && r.HolderIdentity != l.settings.Identity {
		l.reportHolder(r.HolderIdentity)
		if l.onLost != nil {
			l.onLost()
		}
	}
	return r, raw, err
}

// reportWrite handles the result of a request that wrote the Lease r. began is the time just before the request, from which the
// Lease counts.
func (l *reportingLock) reportWrite(ctx context.Context, began time.Duration, r resourcelock.LeaderElectionRecord, err error) error {
	if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) { // A conflict only means that another pod was faster.
		l.reportTrouble(ctx, err)
	}
	if err != nil || r.HolderIdentity != l.settings.Identity {
		return err
	}
	l.reportedHolder = ""
	end := began + l.settings.Duration - l.settings.stopMargin()
	l.guard.end.Store(int64(end))
	// This fails if the init is stopped and its queue is full. The init then gets the message of the next renewal.
	_ = l.init.send(fmt.Sprintf("X_HINIT_LEASE=held %d\nSTATUS=holds the Lease %s/%s", end.Microseconds(), l.settings.Namespace, l.settings.Name))
	if !l.holds {
		l.holds = true
		l.log("this pod has the Lease %s/%s", l.settings.Namespace, l.settings.Name)
	}
	return nil
}

// reportHolder reports the holder of the Lease to the init and the log, once for each holder. It
// masks the text: an agent with the pod's token can write anything into the Lease, even lines that
// would be messages to the init.
func (l *reportingLock) reportHolder(holder string) {
	if !identityPattern.MatchString(holder) {
		holder = "unknown"
	}
	if l.reportedHolder == holder || l.init.send(fmt.Sprintf("X_HINIT_LEASE=waits %s\nSTATUS=waits for the Lease %s/%s, which %[1]s has", holder, l.settings.Namespace, l.settings.Name)) != nil {
		return // The next request reports the holder.
	}
	l.reportedHolder, l.holds = holder, false
	l.log("the Lease %s/%s is held by %s", l.settings.Namespace, l.settings.Name, holder)
}

// reportTrouble logs a problem with the API server when it begins, and again when it is over. It ignores requests that were canceled.
func (l *reportingLock) reportTrouble(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	text, next := "", ""
	if err != nil {
		text = err.Error()
	}
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		next = "; let the ServiceAccount of this pod get, create and update this Lease"
	}
	switch {
	case text == l.loggedTrouble:
		return
	case text == "":
		l.log("the API server answers again")
	case l.loggedTrouble == "":
		l.log("cannot reach the Lease %s/%s: %s%s", l.settings.Namespace, l.settings.Name, text, next)
	}
	l.loggedTrouble = text
}

// releaseLease releases the Lease if this pod holds it. It tries again after an error, for at most renewDeadline, because the next pod
// would otherwise wait for the whole duration of the Lease.
func (l *reportingLock) releaseLease(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.settings.renewDeadline())
	defer cancel()
	for {
		r, _, err := l.Interface.Get(ctx)
		if err == nil && r.HolderIdentity == l.settings.Identity {
			now := metav1.Now()
			err = l.Interface.Update(ctx, resourcelock.LeaderElectionRecord{LeaderTransitions: r.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now})
		}
		lasting := apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
		switch {
		case err == nil:
			return nil
		case lasting || !pause.For(ctx, retryInterval):
			return fmt.Errorf("cannot release the Lease %s/%s: %w", l.settings.Namespace, l.settings.Name, err)
		}
	}
}

// boottime returns CLOCK_BOOTTIME (clock_gettime(2)), the clock of the messages to the init. It
// keeps running while the machine is suspended, as the Lease does.
func boottime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // Every Linux that runs Go has this clock.
	return time.Duration(ts.Nano())
}
