package supervisor_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"

	"hinit/internal/proc"
	"hinit/supervisor"
)

// BenchmarkBootOfMany registers and starts services one after the other, without processes. It reports the time for each
// service.
func BenchmarkBootOfMany(b *testing.B) {
	for _, n := range []int{500, 2000, 8000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			for b.Loop() {
				l := supervisor.NewLoop(supervisor.Config{Procs: &instantSpawner{}, Logs: noLogs{}})
				ended := make(chan int)
				go func() { ended <- l.Run() }()
				answers := make([]func() error, 0, n)
				for i := range n {
					u := supervisor.Unit{Name: fmt.Sprintf("gateway-p%05d", i), Kind: supervisor.KindGateway, Policy: supervisor.Policy{ResetAfter: 1e11, Grace: 1e9}}
					answers = append(answers, l.RegisterSoon(context.Background(), &u, supervisor.WantUp))
				}
				for _, answer := range answers {
					if err := answer(); err != nil {
						b.Fatal(err)
					}
				}
				if got := len(l.Snapshot().Services); got != n {
					b.Fatalf("%d services", got)
				}
				b.StopTimer()
				l.Post(supervisor.Shutdown{})
				<-ended
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/service")
		})
	}
}

// BenchmarkStopOfMany stops services whose processes end one after the other, without real processes.
func BenchmarkStopOfMany(b *testing.B) {
	for _, n := range []int{100, 500, 2000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				ends := make(chan os.Signal, 1)
				l := supervisor.NewLoop(supervisor.Config{Procs: &endingSpawner{sigchld: ends}, Logs: silentLogs{}, SIGCHLD: ends, ShutdownBudget: 8e9})
				ended := make(chan int)
				go func() { ended <- l.Run() }()
				for i := range n {
					u := supervisor.Unit{Name: fmt.Sprintf("gateway-p%05d", i), Kind: supervisor.KindGateway, Policy: supervisor.Policy{Grace: 1e9}}
					if err := l.Register(context.Background(), u, supervisor.WantUp); err != nil {
						b.Fatal(err)
					}
				}
				b.StartTimer()
				l.Post(supervisor.Shutdown{})
				<-ended
			}
		})
	}
}

// endingSpawner starts no processes. A signalled process counts as ended, and each Reap returns one of them.
type endingSpawner struct {
	instantSpawner
	ended   []proc.Exit
	sigchld chan os.Signal
}

func (s *endingSpawner) Signal(id uint64, signal int) error {
	if signal == 0 {
		s.ended = append(s.ended, proc.Exit{ID: id, PID: int(id)})
		s.endNext()
	}
	return nil
}

func (s *endingSpawner) Reap(_ bool, each func(proc.Exit)) (childless bool) {
	if len(s.ended) > 0 {
		x := s.ended[0]
		s.ended = s.ended[1:]
		each(x)
	}
	s.endNext()
	return len(s.ended) == 0
}

func (s *endingSpawner) endNext() {
	if len(s.ended) > 0 {
		select {
		case s.sigchld <- os.Interrupt:
		default:
		}
	}
}

// silentLogs never calls back with the last lines of a service.
type silentLogs struct{ noLogs }

func (silentLogs) Tail(string, func([]string)) {}

type instantSpawner struct{ pid int }

func (s *instantSpawner) Spawn(proc.Spec) (int, error)  { s.pid++; return s.pid, nil }
func (*instantSpawner) RecordMembers(uint64)            {}
func (*instantSpawner) RunOf(int) uint64                { return 0 }
func (*instantSpawner) Signal(uint64, int) error        { return nil }
func (*instantSpawner) SignalGroup(uint64, int) error   { return nil }
func (*instantSpawner) SignalTree(uint64, int) int      { return 0 }
func (*instantSpawner) SignalDescendants(int)           {}
func (*instantSpawner) Reap(bool, func(proc.Exit)) bool { return true }
func (*instantSpawner) CheckForTracer(...int)           {}
func (*instantSpawner) EndedRuns([]uint64) []uint64     { return nil }
func (*instantSpawner) Forget(uint64)                   {}

type noLogs struct{}

func (noLogs) Pipes(string) (stdout, stderr *os.File, err error) { return nil, nil, nil }
func (noLogs) Tail(_ string, done func([]string))                { done(nil) }
