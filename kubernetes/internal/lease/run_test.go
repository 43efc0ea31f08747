package lease

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// failingLock is a Lease whose API server fails requests. The lists gets and writes hold the error
// of each next request; nil means success.
type failingLock struct {
	resourcelock.Interface
	holder string
	gets   []error
	writes []error
}

func popError(errs *[]error) error {
	if len(*errs) == 0 {
		return nil
	}
	err := (*errs)[0]
	*errs = (*errs)[1:]
	return err
}

func (f *failingLock) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if err := popError(&f.gets); err != nil {
		return nil, nil, err
	}
	return &resourcelock.LeaderElectionRecord{HolderIdentity: f.holder}, nil, nil
}

func (f *failingLock) Update(_ context.Context, r resourcelock.LeaderElectionRecord) error {
	if err := popError(&f.writes); err != nil {
		return err
	}
	f.holder = r.HolderIdentity
	return nil
}

// TestTheNextPodDoesNotWaitForALeaseAfterAnErrorOfTheAPIServer checks that the program releases its
// Lease although the API server fails for a moment. It gives up soon if the error stays.
func TestTheNextPodDoesNotWaitForALeaseAfterAnErrorOfTheAPIServer(t *testing.T) {
	busy := apierrors.NewTooManyRequests("busy", 1)
	broken := apierrors.NewInternalError(errors.New("etcd has no leader"))
	conflict := apierrors.NewConflict(schema.GroupResource{}, "agents", errors.New("changed"))
	forbidden := apierrors.NewForbidden(schema.GroupResource{}, "agents", errors.New("no role"))
	lasting := make([]error, 1000)
	for i := range lasting {
		lasting[i] = broken
	}
	for what, c := range map[string]struct {
		lock   failingLock
		holder string // Holder of the Lease afterwards.
		says   string
	}{
		"no error":            {failingLock{holder: "me"}, "", ""},
		"errors of reads":     {failingLock{holder: "me", gets: []error{broken, busy, context.DeadlineExceeded}}, "", ""},
		"errors of writes":    {failingLock{holder: "me", writes: []error{conflict, busy, broken}}, "", ""},
		"of another pod":      {failingLock{holder: "other"}, "other", ""},
		"an error that stays": {failingLock{holder: "me", gets: lasting}, "me", "cannot release the Lease ns/agents: Internal error occurred: etcd has no leader"},
		"without a role":      {failingLock{holder: "me", gets: []error{nil}, writes: []error{forbidden, errors.New("asked again")}}, "me", "no role"},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := &reportingLock{Interface: &c.lock, settings: Settings{Namespace: "ns", Name: "agents", Identity: "me", Duration: 15 * time.Second}}
			begin := time.Now()
			err := l.releaseLease(t.Context())
			if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) || c.lock.holder != c.holder {
				t.Errorf("%s: %q holds it, %v", what, c.lock.holder, err)
			}
			if took := time.Since(begin); took > 10*time.Second {
				t.Errorf("%s: it took %v", what, took)
			}
		})
	}
}

// TestTheHolderOfALeaseSendsNoMessages checks that a forged holder name in a Lease can't add a
// message to the init.
func TestTheHolderOfALeaseSendsNoMessages(t *testing.T) {
	at := filepath.Join(t.TempDir(), "notify")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err := errors.Join(err, unix.Bind(fd, &unix.SockaddrUnix{Name: at})); err != nil {
		t.Fatal(err)
	}
	defer os.NewFile(uintptr(fd), at).Close()
	init, err := dial(at)
	if err != nil {
		t.Fatal(err)
	}
	defer init.close()
	for who, want := range map[string]string{"0a1b-2c": "0a1b-2c", "x\nX_HINIT_LEASE=held 9000000000000": "unknown", strings.Repeat("x", 1<<20): "unknown"} {
		l := &reportingLock{init: init, log: func(string, ...any) {}, settings: Settings{Namespace: "ns", Name: "agents"}}
		l.reportHolder(who)
		text := make([]byte, 4096)
		n, err := unix.Read(fd, text)
		if err != nil || string(text[:max(n, 0)]) != "X_HINIT_LEASE=waits "+want+"\nSTATUS=waits for the Lease ns/agents, which "+want+" has" {
			t.Errorf("of %.40q the init hears %q, %v", who, text[:max(n, 0)], err)
		}
	}
}
