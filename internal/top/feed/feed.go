// Package feed reads the data sources of `hinit top`: the status and the events of hinit, the logs on the volume, and the
// processes of services in /proc. At first it asks PID 1 for all names and process ids, and later only follows the changes.
//
// The functions block until their context ends, and report by calling functions in the caller's goroutine. Only Log starts
// goroutines. The package does not escape the text that it reads. Several goroutines may use a [Feed].
package feed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/samber/lo"
	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/boot/lookup"
	"hinit/internal/cmdline"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/internal/proc"
	"hinit/internal/procusage"
	"hinit/internal/redact"
	"hinit/internal/s6/formats"
	"hinit/internal/top/model"
	"hinit/logrotate/reader"
)

// Feed reads the data sources of one hinit. Make it with [Open] or [OpenSocket].
type Feed struct {
	sameContainer bool // whether this hinit runs in the same container as this program
	client        *dial.Client
	status        atomic.Pointer[client.Status] // last known status; nil before the first one
}

// Open returns the feed of this container's hinit. It finds the hinit through environment variables, and blocks and fails as
// [dial.Dial] does. If hinit moves to another socket later, the feed finds the new one.
func Open() (*Feed, error) {
	f := &Feed{sameContainer: true, client: cmdline.ClientForThisContainer(os.LookupEnv)}
	return f, f.client.CheckConnection()
}

// OpenSocket returns the feed of the hinit that listens on socket. It does not connect yet.
func OpenSocket(socket string) *Feed { return &Feed{client: dial.New(socket)} }

// FetchStatus asks for the current status.
func (f *Feed) FetchStatus(ctx context.Context) (client.Status, error) { return f.client.Status(ctx) }

// retryPause is the pause before the next request to a hinit that has not answered.
const retryPause = 250 * time.Millisecond

// FollowStatus follows the status until ctx ends. It calls change for each change, and lost after each failure. If hinit ends or
// re-executes itself, FollowStatus connects again.
func (f *Feed) FollowStatus(ctx context.Context, change func(client.StatusChange), lost func(error)) {
	var st client.Status
	f.callRepeatedly(ctx, lost, func() error {
		return f.client.Watch(ctx, func(c client.StatusChange) error {
			c.Apply(&st)
			f.status.Store(new(st))
			change(c)
			return nil
		})
	})
}

// FollowEvents follows the events until ctx ends, and calls event for each one. It begins with at most last past events.
func (f *Feed) FollowEvents(ctx context.Context, last int, event func(client.Event)) {
	seen := uint64(0)
	f.callRepeatedly(ctx, func(error) {}, func() error {
		o := client.EventOptions{Follow: true, AfterSeq: seen}
		if seen == 0 {
			o.MaxPast = last
		}
		err := f.client.Events(ctx, o, func(e client.Event) error {
			seen = max(seen, e.Seq)
			event(e)
			return nil
		})
		if errors.Is(err, client.ErrBadRequest) {
			seen = 0 // another hinit now counts its events from 1
		}
		return err
	})
}

// callRepeatedly calls ask until ctx ends, with a pause after each call. It passes the error of each call to lost.
func (f *Feed) callRepeatedly(ctx context.Context, lost func(error), ask func() error) {
	for ctx.Err() == nil {
		if err := ask(); err != nil && ctx.Err() == nil {
			lost(dial.WithoutAction(err))
		}
		pause.For(ctx, retryPause)
	}
}

// SendOrder sends an order for a service. It waits until the order has taken effect or has failed.
func (f *Feed) SendOrder(ctx context.Context, verb client.Verb, name string) error {
	_, err := f.client.Order(ctx, verb, name, client.WaitOptions{Wait: true})
	return err
}

// Signal sends a signal to a service. word is the signal's name or number.
func (f *Feed) Signal(ctx context.Context, name, word string) error {
	number, known := formats.ParseSignal(word)
	if !known {
		return fmt.Errorf("%q is no signal; write a name such as HUP or a number from 1 to 64", word)
	}
	_, err := f.client.Signal(ctx, name, syscall.Signal(number))
	return err
}

// maxProcesses limits the processes in the details of a service.
const maxProcesses = 64

// ReadProcesses reads the processes of a service, and the environment of its main process pid, from /proc. It hides the secrets
// that it recognises.
func (f *Feed) ReadProcesses(of model.ID, pid int) model.ProcessDetails {
	out := model.ProcessDetails{ID: of}
	if pid <= 0 {
		out.Missing = "it has no process"
		return out
	}
	root := f.procPath()
	if root == "" {
		out.Missing = "its processes are not to be seen from here: ask inside the container, as root or as the agent's user"
		return out
	}
	all, err := procusage.ReadProcesses(root)
	if err != nil {
		out.Missing = err.Error()
		return out
	}
	roots := proc.ServiceRoots{Mains: map[int]string{pid: of.Name}}
	if st := f.status.Load(); st != nil {
		roots = procusage.ServiceRootsOf(*st, root)
	}
	owners := roots.Owners(all)
	list := all.Tree(pid, func(of int) bool { return owners[of] == pid })
	for _, p := range list[:min(len(list), maxProcesses)] {
		out.Processes = append(out.Processes, model.Process{PID: p.PID, Depth: p.Depth, Memory: p.Memory, Command: procusage.CommandLine(root, p.PID)})
	}
	environ, err := procusage.ReadProcFile(fmt.Sprintf("%s/%d/environ", root, pid))
	if err != nil {
		out.Missing = "its environment may not be read by this user"
	}
	out.Environment = parseEnviron(environ)
	return out
}

// parseEnviron returns the variables in environ, the content of a file /proc/PID/environ. It sorts them and hides secrets.
func parseEnviron(environ []byte) []string {
	out := lo.FilterMap(strings.Split(string(environ), "\x00"), func(kv string, _ int) (string, bool) {
		name, value, is := strings.Cut(kv, "=")
		shown := redact.HideText(redact.HideValue(name, value))
		return name + "=" + shown[:min(len(shown), procusage.MaxTextBytes)], is
	})
	slices.Sort(out)
	return out
}

const (
	// initialLogLines is the number of past lines with which Log begins.
	initialLogLines = 500
	// logInterval is the time between two batches of lines from Log. A batch has at most maxLogBatch lines, the newest.
	logInterval = 200 * time.Millisecond
	maxLogBatch = 2000
	// maxLogLine is the size in bytes to which each line is cut.
	maxLogLine = 4 << 10
)

// FollowLog follows a log file, across rotations, until ctx ends. If of is the log of an earlier run, FollowLog reads the last
// lines of the run instead. It first calls lines with nil, and then with new lines, at most five times a second. If too many
// lines arrive, it drops the oldest. Another goroutine reads the file, so FollowLog returns in time even if the volume hangs.
func (f *Feed) FollowLog(ctx context.Context, of model.Log, lines func([]model.LogLine)) {
	as, err := f.logReader()
	if err != nil {
		lines([]model.LogLine{{Text: "cannot read the log: " + err.Error()}})
		return
	}
	var mu sync.Mutex
	var fresh []model.LogLine
	ended := make(chan error, 1)
	guard.Go("reading a log", func() {
		o := reader.Options{Dir: filepath.Dir(of.File), LastLines: initialLogLines, Follow: true}
		if !of.Until.IsZero() {
			o.LastLines, o.Follow, o.Since, o.Previous = -1, false, of.From, true
		}
		ended <- reader.Read(ctx, as, o, func(line []byte) error {
			at, text, _ := reader.SplitLine(line)
			if !of.Until.IsZero() && at.After(of.Until) {
				return errLaterRun
			}
			mu.Lock()
			defer mu.Unlock()
			if len(fresh) == 2*maxLogBatch {
				fresh = append(fresh[:0], fresh[maxLogBatch:]...)
			}
			fresh = append(fresh, model.LogLine{At: at, Text: string(text[:min(len(text), maxLogLine)])})
			return nil
		})
	})
	lines(nil)
	tick := time.Tick(logInterval)
	for over := false; !over; {
		select {
		case <-ctx.Done():
			return
		case err = <-ended:
			over = true
		case <-tick:
		}
		mu.Lock()
		batch := fresh[max(0, len(fresh)-maxLogBatch):]
		fresh = nil
		mu.Unlock()
		if over && err != nil && !errors.Is(err, errLaterRun) {
			batch = append(batch, model.LogLine{Text: "cannot read the log: " + err.Error()})
		}
		if len(batch) > 0 && ctx.Err() == nil {
			lines(batch)
		}
	}
}

// errLaterRun stops reading the log of an earlier run at the first line of a later run.
var errLaterRun = errors.New("the lines are of a later run")

// logReader returns the identity for reading the logs. hinit names a log by its path in its own file system. If the user has
// named a socket, logReader allows reading only if this process has the same file system as that hinit, and never as root.
func (f *Feed) logReader() (*fsutil.Actor, error) {
	st := f.status.Load()
	if st == nil {
		return nil, errors.New("hinit has not answered yet")
	}
	if f.sameContainer {
		return lookup.LogReader(st.Init.ServicesFile != "", os.LookupEnv)
	}
	here, err := os.Stat("/")
	if err != nil {
		return nil, err
	}
	there, err := os.Stat(fmt.Sprintf("%s/%d/root/", f.procPath(), st.Init.PID))
	if err != nil || f.procPath() == "" || !os.SameFile(here, there) {
		return nil, errors.New("it is in another file system; call hinit top or hinit logs in that container")
	}
	return lookup.LogReader(false, os.LookupEnv)
}

const (
	// measureInterval is the shortest time between two measurements of the usage.
	measureInterval = time.Second
	// measurePauseFactor times the processor time of one measurement is the minimum pause until the next. So measuring takes at
	// most a hundredth of a processor.
	measurePauseFactor = 100
)

// procPath returns the path of a /proc with the processes of the services, or "" if this process can see none.
func (f *Feed) procPath() string {
	if st := f.status.Load(); st != nil && st.Init.PID > 0 {
		return procusage.FindProc(f.client.Socket(), st.Init.PID)
	}
	return ""
}

// FollowUsage measures the processor time and the memory of the services until ctx ends, once a second. It measures less often
// if that would take more than a hundredth of a processor. It calls used with the results by service, or with nil if it can't
// measure.
func (f *Feed) FollowUsage(ctx context.Context, used func(map[string]procusage.Usage)) {
	runtime.LockOSThread() // stay on one thread, because threadCPUTime measures the current thread
	defer runtime.UnlockOSThread()
	var root string
	var at time.Time
	var last procusage.Table
	for ctx.Err() == nil {
		begin := threadCPUTime()
		st := f.status.Load()
		if root == "" {
			root = f.procPath()
		}
		if st != nil && root != "" {
			now := time.Now()
			all, err := procusage.ReadProcesses(root) // after an error, all is nil
			if err != nil {
				root = ""
				used(nil)
			} else {
				used(all.UsageByService(procusage.ServiceRootsOf(*st, root), last, now.Sub(at)))
			}
			last, at = all, now
		} else if st != nil {
			used(nil)
		}
		rest := max(measureInterval, measurePauseFactor*(threadCPUTime()-begin))
		if st == nil {
			rest = retryPause
		}
		pause.For(ctx, rest)
	}
}

// threadCPUTime returns the processor time of this thread.
func threadCPUTime() time.Duration {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now) != nil {
		return 0
	}
	return time.Duration(now.Nano())
}
