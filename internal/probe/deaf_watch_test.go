package probe

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/config"
	"hinit/internal/procstat"
	"hinit/profiles"
	"hinit/supervisor"
)

type deafWatchRig struct {
	*DeafWatch

	snapshot           supervisor.Snapshot
	lines              atomic.Uint64
	diskError          atomic.Pointer[error]
	reads              atomic.Int64
	examinedProfiles   [][]string
	unreadableProfiles []string // profiles whose variables can't be read
	mu                 sync.Mutex
	messages           []string
}

func newDeafWatchRig(pids ...int) *deafWatchRig {
	r := &deafWatchRig{}
	for i, pid := range pids {
		profile := fmt.Sprint("p", i)
		r.snapshot.Services = append(r.snapshot.Services, &supervisor.Service{
			Name: profiles.SlotName(profile), Profile: profile, Kind: supervisor.KindGateway, State: supervisor.Up, PID: pid, Run: uint64(i) + 1,
		})
	}
	r.DeafWatch = NewDeafWatch(DeafOptions{
		Snapshot: func() *supervisor.Snapshot { return &r.snapshot },
		Lines:    func(string) uint64 { return r.lines.Load() },
		EachEnv: func(of []string, each func(string, map[string]string)) error {
			r.examinedProfiles = append(r.examinedProfiles, of)
			for _, profile := range of {
				if !slices.Contains(r.unreadableProfiles, profile) {
					each(profile, nil)
				}
			}
			return nil
		},
		State: func(string) (profiles.State, error) {
			r.reads.Add(1)
			if err := r.diskError.Load(); err != nil {
				return profiles.State{}, *err
			}
			return profiles.State{Exists: true}, nil
		},
		Post: func(e supervisor.Event) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.messages = append(r.messages, fmt.Sprintf("%T%+v", e, e))
		},
	})
	r.setAction(config.OnFailureReport)
	return r
}

func withoutAnswer(good bool, _ string) bool { return good }

func (r *deafWatchRig) setAction(action string) {
	r.period = 30 * time.Second
	r.policy = func(*supervisor.Service) config.DeafDetection {
		return config.DeafDetection{Action: action, MinSilence: 4 * time.Minute}
	}
}

// takeEvents returns the events since its last call.
func (r *deafWatchRig) takeEvents() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	messages := r.messages
	r.messages = nil
	return messages
}

func startSleep(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

func awaitStopped(t *testing.T, pid int, want bool) {
	t.Helper()
	state := func() byte { st, _ := procstat.Read(pid); return st.State }
	for end := time.Now().Add(time.Minute); (state() == 'T') != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("process %d is in state %c", pid, state())
		}
	}
}

// A gateway stopped by SIGSTOP must be reported once, after the second check. Its continuation must be reported too, and no
// other gateway.
func TestAStoppedGatewayIsNamed(t *testing.T) {
	one, other := startSleep(t), startSleep(t)
	r := newDeafWatchRig(one.Process.Pid, other.Process.Pid)
	r.runRound()
	_ = one.Process.Signal(unix.SIGSTOP)
	awaitStopped(t, one.Process.Pid, true)
	r.runRound()
	if messages := r.takeEvents(); len(messages) > 0 {
		t.Errorf("after one look: %q", messages)
	}
	r.runRound()
	r.runRound()
	if messages := r.takeEvents(); len(messages) != 1 || !strings.Contains(messages[0], "Service:gateway-p0 Text:deaf: its process is stopped") {
		t.Errorf("after the second: %q", messages)
	}
	d, deaf := r.Deafness("gateway-p0")
	if _, another := r.Deafness("gateway-p1"); !deaf || another || d.Run != 1 || d.Why != "its process is stopped" {
		t.Errorf("it is %+v, %t; the other one: %t", d, deaf, another)
	}
	r.setAction(config.OnFailureRestart)
	r.runRound()
	r.runRound()
	if messages := r.takeEvents(); len(messages) != 1 || !strings.Contains(messages[0], "supervisor.Unhealthy{Name:gateway-p0 Run:1 Answer:deaf: its process is stopped") {
		t.Errorf("it is to be restarted: %q", messages)
	}
	_ = one.Process.Signal(unix.SIGCONT)
	awaitStopped(t, one.Process.Pid, false)
	r.runRound()
	if messages := r.takeEvents(); len(messages) != 1 || !strings.Contains(messages[0], "not deaf any more") {
		t.Errorf("after SIGCONT: %q", messages)
	}
	_ = one.Process.Signal(unix.SIGSTOP)
	awaitStopped(t, one.Process.Pid, true)
	r.setAction(config.DeafDetectionByCheck)
	r.runRound()
	r.runRound()
	look := deafCheck{1, func() (Deafness, bool) { return r.Deafness("gateway-p0") }}
	if good, answer := look.check(time.Time{}); good || answer != "its process is stopped" || len(r.takeEvents()) != 0 {
		t.Errorf("a check says %t, %q, and is not alone", good, answer)
	}
	if look.run = 2; !withoutAnswer(look.check(time.Time{})) {
		t.Error("a check says it of a later run")
	}
	_ = one.Process.Signal(unix.SIGCONT)
	awaitStopped(t, one.Process.Pid, false)
	if r.setAction(config.DeafDetectionOff); len(r.runs) != 2 {
		t.Errorf("%d runs are known", len(r.runs))
	}
	r.runRound()
	if len(r.runs) != 0 {
		t.Errorf("nobody is to be looked at, and %d are known", len(r.runs))
	}
}

// A gateway hangs: its lines and heartbeats have ended, and it uses no processor time. It must be reported, but not while the
// disk doesn't answer, or after another heartbeat.
func TestOneThatHangsIsFound(t *testing.T) {
	one := startSleep(t)
	pid := one.Process.Pid
	synctest.Test(t, func(t *testing.T) {
		r := newDeafWatchRig(pid)
		for range 20 {
			r.runRound()
			time.Sleep(30 * time.Second)
			r.lines.Add(1)
			r.RecordHeartbeat("p0")
		}
		hung := errors.New("the volume does not answer")
		r.diskError.Store(&hung)
		for range 20 {
			r.runRound()
			time.Sleep(30 * time.Second)
		}
		if messages := r.takeEvents(); len(messages) > 0 || r.reads.Load() == 0 {
			t.Errorf("while the disk does not answer: %q after %d questions", messages, r.reads.Load())
		}
		r.diskError.Store(nil)
		r.runRound()
		time.Sleep(30 * time.Second)
		r.runRound()
		want := "deaf: no heartbeat for 11m although it writes one every 30s, its log is silent for 11m although it writes every 30s"
		if messages := r.takeEvents(); len(messages) != 1 || !strings.Contains(messages[0], want) {
			t.Errorf("it hangs: %q", messages)
		}
		r.RecordHeartbeat("p0")
		time.Sleep(30 * time.Second)
		r.runRound()
		if messages := r.takeEvents(); len(messages) != 1 || !strings.Contains(messages[0], "not deaf any more") {
			t.Errorf("it beats again: %q", messages)
		}
	})
}

// After ten hours in which no process ran, including hinit, no gateway may be reported. All 200 gateways were alive just
// before.
func TestAPausedContainerAccusesNobody(t *testing.T) {
	one := startSleep(t)
	pid := one.Process.Pid
	synctest.Test(t, func(t *testing.T) {
		r := newDeafWatchRig(slices.Repeat([]int{pid}, 200)...)
		hear := func(rounds int) {
			for range rounds {
				r.runRound()
				time.Sleep(30 * time.Second)
				r.lines.Add(1)
				for _, v := range r.snapshot.Services {
					r.RecordHeartbeat(v.Profile)
				}
			}
		}
		hear(20)
		time.Sleep(10 * time.Hour)
		r.runRound()
		time.Sleep(30 * time.Second)
		r.runRound()
		hear(20)
		if messages := r.takeEvents(); len(messages) > 0 {
			t.Errorf("it says %q", messages)
		}
	})
}

// DeafWatch must wake up twice a minute while lines come, for any number of gateways, and once an hour while none come. It may
// read the disk only to confirm a suspicion.
func TestDeafWatchWakesUpSeldom(t *testing.T) {
	one := startSleep(t)
	pid := one.Process.Pid
	synctest.Test(t, func(t *testing.T) {
		r := newDeafWatchRig(slices.Repeat([]int{pid}, 200)...)
		ended := make(chan struct{})
		r.options.SupervisorEnded = ended
		r.Configure(r.period, r.policy)
		write := func(lines int) {
			for range lines {
				r.lines.Add(1)
				r.Resume()
				time.Sleep(20 * time.Second)
			}
		}
		count := func(what string, want uint64) {
			time.Sleep(time.Second)
			synctest.Wait()
			if n := r.rounds.Swap(0); n != want {
				t.Errorf("%d rounds %s, expected %d", n, what, want)
			}
		}
		time.Sleep(59 * time.Minute)
		count("before the first line", 0)
		write(3)
		time.Sleep(time.Minute)
		count("for lines in a minute, and one after them", 3)
		time.Sleep(58 * time.Minute)
		count("in a rest", 0)
		write(30)
		count("in 10 min with lines", 20)
		time.Sleep(10*time.Minute - time.Second)
		count("in 10 min of a silence that may become unusual", 20)
		if n := r.reads.Load(); n != 0 {
			t.Errorf("%d state files were read", n)
		}
		close(ended)
	})
}

// SIGCHLD for a stopped child must wake a suspended DeafWatch, so that the gateway is reported.
func TestAGatewayThatIsStoppedInARestIsNamed(t *testing.T) {
	one := startSleep(t)
	r := newDeafWatchRig(one.Process.Pid)
	ended := make(chan struct{})
	defer close(ended)
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	defer signal.Stop(children)
	r.options.SupervisorEnded, r.options.Children = ended, children
	r.Configure(time.Millisecond, r.policy)
	// waits until DeafWatch is suspended after its first check
	for rested := r.rounds.Load(); rested == 0 || !r.suspended.Load(); rested = r.rounds.Load() {
		r.Resume()
		time.Sleep(time.Millisecond)
	}
	_ = one.Process.Signal(unix.SIGSTOP)
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, deaf := r.Deafness("gateway-p0"); deaf {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("it is not found in %d rounds", r.rounds.Load())
		}
	}
}

// Time in which DeafWatch is suspended counts as a gap between lines. A gateway that writes once an hour must not be called
// deaf after minutes.
func TestALineAfterALongRestMakesALongHabit(t *testing.T) {
	one := startSleep(t)
	pid := one.Process.Pid
	synctest.Test(t, func(t *testing.T) {
		r := newDeafWatchRig(pid)
		ended := make(chan struct{})
		r.options.SupervisorEnded = ended
		r.Configure(r.period, r.policy)
		for range 12 {
			r.lines.Add(1)
			r.RecordHeartbeat("p0")
			r.Resume()
			time.Sleep(time.Hour)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if messages := r.takeEvents(); len(messages) > 0 {
			t.Errorf("it says %q", messages)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if messages := r.takeEvents(); len(messages) != 1 || !strings.Contains(messages[0], "no heartbeat for 3h") {
			t.Errorf("after three times its habit: %q", messages)
		}
		close(ended)
	})
}

func BenchmarkRound(b *testing.B) {
	r := newDeafWatchRig(slices.Repeat([]int{os.Getpid()}, 200)...)
	r.runRound()
	r.runRound()
	b.ReportAllocs()
	begin := ownCPUTime()
	b.ResetTimer()
	for range b.N {
		r.runRound()
	}
	b.ReportMetric(float64((ownCPUTime()-begin).Microseconds())/float64(b.N), "cpu-µs/round")
}

func TestTheVariablesOfAllGatewaysAreReadInOneCallAndOnce(t *testing.T) {
	var pids []int
	for range 5 {
		pids = append(pids, startSleep(t).Process.Pid)
	}
	r := newDeafWatchRig(pids...)
	r.unreadableProfiles = []string{"p3"}
	r.runRound()
	r.runRound()
	r.unreadableProfiles = nil
	r.runRound()
	r.runRound()
	if want := [][]string{{"p0", "p1", "p2", "p3", "p4"}, {"p3"}, {"p3"}}; !reflect.DeepEqual(r.examinedProfiles, want) {
		t.Errorf("read %q, want %q", r.examinedProfiles, want)
	}
}

// Only one read of the .env files may run at a time. If each check of the gateways began another, up to 16 would fill the
// memory of PID 1.
func TestVariablesThatTakeLongAreReadOnceAtATime(t *testing.T) {
	pid := startSleep(t).Process.Pid
	synctest.Test(t, func(t *testing.T) {
		r := newDeafWatchRig(pid)
		var calls atomic.Int32
		held, each := make(chan struct{}), r.options.EachEnv
		r.options.EachEnv = func(of []string, then func(string, map[string]string)) error {
			calls.Add(1)
			<-held
			return each(of, then)
		}
		for range 5 {
			r.runRound()
			time.Sleep(r.period)
		}
		if n := calls.Load(); n != 1 {
			t.Errorf("%d calls wait at once", n)
		}
		close(held)
		synctest.Wait()
		r.runRound()
		r.runRound()
		if n := calls.Load(); n != 2 {
			t.Errorf("%d calls, of which the last one was answered", n)
		}
	})
}

// A port from an agent's .env must not make hinit connect to another host.
func TestAPortOfAnEnvFileLeadsToNoOtherHost(t *testing.T) {
	for port, asked := range map[string]bool{"8642": true, "": false, "80@10.0.0.1:80/x?": false, "80/x#": false, " 80": false} {
		if h := healthCheckOf(map[string]string{healthEnabledVar: "true", healthPortVar: port}); (h != nil) != asked {
			t.Errorf("port %q: %v", port, h)
		}
	}
}
