package kanban

// Result lists the changes of one pass. The JSON names are the contract's.
type Result struct {
	Reclaimed           int         `json:"reclaimed"`                  // claims released because their time was over
	Crashed             []string    `json:"crashed"`                    // workers that are gone
	TimedOut            []string    `json:"timed_out"`                  // over their own maximum runtime
	Stale               []string    `json:"stale"`                      // running for long without a sign of life
	AutoBlocked         []string    `json:"auto_blocked"`               // reached the failure limit
	Promoted            int         `json:"promoted"`                   // todo and blocked tasks that became ready
	Spawned             []Spawned   `json:"spawned"`                    // in a dry run: would be
	SkippedUnassigned   []string    `json:"skipped_unassigned"`         // no profile runs it: an operator must act
	SkippedNonspawnable []string    `json:"skipped_nonspawnable"`       // the assignee isn't a profile: a person, a terminal
	SkippedCapped       []Capped    `json:"skipped_per_profile_capped"` // the profile is busy
	AutoAssigned        []string    `json:"auto_assigned_default"`      // the default assignee was applied, or would be
	RespawnGuarded      []Guarded   `json:"respawn_guarded"`
	RateLimited         []string    `json:"rate_limited"` // requeued without counting
	SkippedLocked       bool        `json:"skipped_locked"`
	Stuck               int         `json:"-"` // could be started, and were not, for no reason in this result
	Full                bool        `json:"-"` // as many run as may
	Leaving             int         `json:"-"` // workers that are alive though their attempt is over
	Alive               int         `json:"-"` // running workers that the runner sees
	Exits               []EndedRun  `json:"-"` // every worker whose end this pass wrote down
	Released            []string    `json:"-"` // claims of workers that somebody ended on purpose; not counted as failures
	Refused             []SpawnFail `json:"-"` // workers that couldn't be started, and why
}

// newResult is a result whose lists are empty, not null, in JSON.
func newResult() Result {
	return Result{
		Crashed: []string{}, TimedOut: []string{}, Stale: []string{}, AutoBlocked: []string{}, Spawned: []Spawned{},
		SkippedUnassigned: []string{}, SkippedNonspawnable: []string{}, SkippedCapped: []Capped{}, AutoAssigned: []string{},
		RespawnGuarded: []Guarded{}, RateLimited: []string{},
	}
}

// Spawned is a task whose worker was started.
type Spawned struct {
	Task      string `json:"task_id"`
	Assignee  string `json:"assignee"`
	Workspace string `json:"workspace"`
}

// Capped is a task that waits for its profile to have a free place.
type Capped struct {
	Task     string `json:"task_id"`
	Assignee string `json:"assignee"`
	Current  int    `json:"current"` // running for that profile at that moment
}

// Guarded is a task that the respawn guard holds back.
type Guarded struct {
	Task   string `json:"task_id"`
	Reason string `json:"reason"`
}

// EndedRun is how the worker of a run ended, as exactly as the runner knows it.
type EndedRun struct {
	Task    string
	Run     int64
	Profile string
	Outcome string
	Exit    Exit
}

// SpawnFail is a worker that couldn't be started.
type SpawnFail struct {
	Task  string
	Error string
}
