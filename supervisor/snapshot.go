package supervisor

import "time"

// Snapshot is what all services looked like after one turn of the loop. It is immutable.
type Snapshot struct {
	Services []*Service // in the order of registration
	Stopping bool       // the container is shutting down
}

// Find returns the named service, or nil.
func (s *Snapshot) Find(name string) *Service {
	for _, v := range s.Services {
		if v.Name == name {
			return v
		}
	}
	return nil
}

// Service is the state of one service. It is immutable.
type Service struct {
	Name    string
	Profile string // "" when it belongs to no profile
	Kind    Kind
	Log     string   // path of its current log file, "" when it has none
	Command []string // of the run while there is one, else of the next one
	Drifted bool     // it runs, and the next run will be started as something else: the configuration is newer
	State   State
	Want    Want
	Reason  string    // why it is in this state
	Since   time.Time // since when
	Turned  time.Time // when its main process was last started or ended, whichever came later; before that, when it was registered
	PID     int       // main process, 0 when there is none; never that of a finish command
	Run     uint64    // number of the current or last run, 0 before the first
	Ready   bool
	// ReadySince is since when it is ready, zero when it is not. While no process of it runs, a finish command neither, it
	// is since when that is so.
	ReadySince time.Time
	Announces  bool      // it says itself when it is ready
	Said       string    // what the running main process tells of itself that people should know, see [Ready]; it may be anything
	Paused     bool      // an operator has stopped its process with SIGSTOP
	Started    bool      // it has been started at least once
	Permanent  bool      // it won't start by itself: its finish command said so, or it is parked or failed
	Restarts   int       // starts that followed an exit nobody asked for
	Failures   int       // fast exits in a row
	CrashLoop  bool      // too many of them within the window; it goes on at the longest delay
	NextStart  time.Time // when it starts by itself, zero when it does not
	Needs      []string  // what it waits for
	OOMAdj     int       // how much higher the oom_score_adj of its processes is than that of hinit
	LastExit   *Exit
}

func (s *service) snapshot(u *unit) *Service {
	v := &Service{
		Name: s.name, Profile: u.Profile, Kind: u.Kind, Log: u.Log, Command: u.Spec.Argv,
		State: s.state, Want: s.want, Reason: s.reason, Since: s.since,
		Turned: s.turned, Run: s.run, Ready: s.ready, ReadySince: s.readySince, Announces: s.policy.Announces, Said: s.said, OOMAdj: oomAdj[u.Kind],
		Paused: s.paused, Started: s.started, Permanent: s.permanent || s.state == Parked || s.state == Failed,
		Restarts: s.restarts, Failures: s.failures, CrashLoop: s.looping, LastExit: s.last,
	}
	if s.runs() {
		v.PID = s.pid
		if u.drifted {
			v.Command, v.Drifted = u.ran.Argv, true
		}
	}
	if s.state == Backoff {
		v.NextStart = s.deadline
	}
	if s.state == Waiting {
		v.Needs = append(v.Needs, s.needs...)
	}
	return v
}
