package actions

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/samber/lo"
	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/backoff"
	"hinit/internal/config"
	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/internal/proc"
	"hinit/internal/redact"
	"hinit/internal/varfiles"
	"hinit/internal/version"
	"hinit/internal/wholefile"
)

// maxQueuedJobs is the maximum number of jobs that wait for one target, a webhook or a command.
const maxQueuedJobs = 100

// maxAttempts is how often the runner sends a request before it gives up.
const maxAttempts = 10

// Runner carries out the actions for events of services. Set the exported fields before Run, and don't change them afterwards.
type Runner struct {
	// follows the status, as [dial.Client.Watch] does
	Watch       func(ctx context.Context, fn func(client.StatusChange) error) error
	ReadConfig  func() (*config.Config, error) // reads the configuration; returns nil if it is unchanged
	StateFile   string                         // path of the state file
	Host        string                         // name of the container in messages
	Log         *slog.Logger
	RetryDelays backoff.Policy // pauses between the attempts of a request; zero: 1 s, doubled each time, at most 1 min

	mu               sync.Mutex
	state            state
	droppedByTarget  map[string]int // targets of running deliveries, each with the number of its dropped jobs
	lastSaveError    string         // last error of saving the state; "" after a success
	config           *config.Config
	lastConfigError  string        // last error of reading the configuration, so that it is reported once
	lastStatus       client.Status // the whole status after the last change
	awaitingLogTail  []string      // services whose events wait for the last log lines
	lastEnvFileCheck time.Time     // when environment files were last checked for changes
	deliveries       sync.WaitGroup
}

// Run carries out actions until ctx ends. Undelivered actions stay in the state file for the next Run. If the configuration
// can't be read at the start, Run returns an error.
func (r *Runner) Run(ctx context.Context) error {
	var err error
	if r.config, err = r.ReadConfig(); err != nil {
		return err
	}
	if r.state, err = loadState(r.StateFile); err != nil {
		r.Log.Warn(err.Error())
	}
	if r.RetryDelays == (backoff.Policy{}) {
		r.RetryDelays = backoff.Policy{Initial: time.Second, Factor: 2, Max: time.Minute, Jitter: 0.1}
	}
	r.droppedByTarget = map[string]int{}
	defer r.deliveries.Wait()
	r.mu.Lock()
	for _, j := range r.state.Jobs {
		r.startDelivery(ctx, j.target())
	}
	r.mu.Unlock()
	lastError := ""
	for ctx.Err() == nil {
		err := r.Watch(ctx, func(c client.StatusChange) error {
			lastError = ""
			r.handleChange(ctx, c)
			return ctx.Err()
		})
		if err != nil && ctx.Err() == nil && err.Error() != lastError {
			lastError = err.Error()
			r.Log.Warn("hinit does not tell its status", "err", err)
		}
		pause.For(ctx, time.Second)
	}
	return nil
}

// handleChange finds the events in a change of the status, adds jobs for their actions, and starts to deliver them.
func (r *Runner) handleChange(ctx context.Context, c client.StatusChange) {
	r.reloadConfig()
	r.mu.Lock()
	defer r.mu.Unlock()
	first := !r.state.InitStartedAt.Equal(c.Init.StartedAt)
	if first {
		r.state.InitStartedAt, r.state.Conditions = c.Init.StartedAt, SeenConditions{}
	}
	c.Apply(&r.lastStatus)
	for _, name := range r.awaitingLogTail {
		if s := r.lastStatus.Find(name); s != nil {
			c.Services = append(c.Services, *s)
		}
	}
	var fresh []*Job
	happened, held, changed := r.state.Conditions.Apply(c, first)
	r.awaitingLogTail = held
	for _, h := range append(happened, r.changedEnvFiles()...) {
		body := sync.OnceValue(func() []byte { return encodeMessage(h, r.Host, time.Now()) }) // all actions of an event get the same body, because it contains the id of the event
		for _, a := range actionsOf(r.config, h.Service.Name, h.Service.Profile, h.Event) {
			fresh = append(fresh, &Job{Event: h.Event, Service: h.Service.Name, Profile: h.Service.Profile, Action: a, Body: body()})
		}
	}
	r.state.Jobs = append(r.state.Jobs, fresh...)
	for _, j := range fresh {
		r.dropOldest(j.target())
	}
	if first || changed || len(fresh) > 0 {
		r.saveState()
	}
	for _, j := range fresh {
		r.startDelivery(ctx, j.target())
	}
}

// envFileCheckInterval is the time between two checks of environment files.
const envFileCheckInterval = 5 * time.Second

// changedEnvFiles returns an event for each service whose environment files have changed since its start, once for each change.
// It ignores services without an action for this event. The caller must hold r.mu and save the state.
func (r *Runner) changedEnvFiles() (out []ServiceEvent) {
	if time.Since(r.lastEnvFileCheck) < envFileCheckInterval {
		return nil
	}
	r.lastEnvFileCheck = time.Now()
	for i := range r.lastStatus.Services {
		s := &r.lastStatus.Services[i]
		if s.Name == config.ActionsName || len(actionsOf(r.config, s.Name, s.Profile, config.EventStale)) == 0 {
			continue
		}
		at := varfiles.ChangedAt(s, varfiles.Paths(r.config, s, os.Environ()))
		if at.IsZero() || at.Equal(r.state.EnvFilesChangedAt[s.Name]) {
			continue
		}
		if r.state.EnvFilesChangedAt == nil {
			r.state.EnvFilesChangedAt = map[string]time.Time{}
		}
		r.state.EnvFilesChangedAt[s.Name] = at
		out = append(out, ServiceEvent{config.EventStale, *s})
	}
	return out
}

// reloadConfig reads a changed configuration again. If the new file is invalid, the runner keeps the old configuration.
func (r *Runner) reloadConfig() {
	rules, err := r.ReadConfig()
	switch {
	case err != nil && err.Error() != r.lastConfigError:
		r.lastConfigError = err.Error()
		r.Log.Warn("going on with the actions as they were", "err", err)
	case err == nil && rules != nil:
		r.config, r.lastConfigError = rules, ""
		r.Log.Info("the actions are read again")
	}
}

// dropOldest drops one job of a target with more than maxQueuedJobs: the oldest job of the service with the most jobs. So no
// service can displace the jobs of others. It never drops the job that is being delivered. The caller must hold r.mu.
func (r *Runner) dropOldest(target string) {
	mine := lo.FilterMap(r.state.Jobs, func(j *Job, i int) (int, bool) { return i, j.target() == target })
	if len(mine) <= maxQueuedJobs {
		return
	}
	dropped := 1
	if _, busy := r.droppedByTarget[target]; busy {
		r.droppedByTarget[target]++
		dropped = r.droppedByTarget[target]
	}
	mine = slices.DeleteFunc(mine, func(i int) bool { return r.state.Jobs[i].running })
	by := lo.GroupBy(mine, func(i int) string { return r.state.Jobs[i].Service })
	oldest := slices.MaxFunc(slices.Collect(maps.Values(by)), func(a, b []int) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(b[0], a[0])) })[0]
	j := r.state.Jobs[oldest]
	r.state.Jobs = slices.Delete(r.state.Jobs, oldest, oldest+1)
	r.Log.Warn("an action is dropped, because too many wait", "event", j.Event, "service", j.Service, "target", j.maskedTarget(), "dropped", dropped)
}

// startDelivery starts a goroutine that delivers the jobs of a target, unless one is running. The caller must hold r.mu.
func (r *Runner) startDelivery(ctx context.Context, target string) {
	if _, busy := r.droppedByTarget[target]; busy || ctx.Err() != nil {
		return
	}
	r.droppedByTarget[target] = 0
	r.deliveries.Go(guard.WrapFunc("carrying out actions", func() { r.deliver(ctx, target) }))
}

// deliver carries out the jobs of a target, one after another, until the target has no more jobs. After a failure that may be
// temporary, it waits before the next attempt.
func (r *Runner) deliver(ctx context.Context, target string) {
	for failures := 0; ; {
		if failures > 0 {
			pause.For(ctx, r.RetryDelays.Delay(failures, rand.Float64()))
		}
		r.mu.Lock()
		j, _ := lo.Find(r.state.Jobs, func(j *Job) bool { return j.target() == target })
		if j == nil || ctx.Err() != nil {
			delete(r.droppedByTarget, target)
			r.mu.Unlock()
			return
		}
		j.running = true
		r.mu.Unlock()
		again, err := attemptJob(ctx, j)
		if ctx.Err() != nil {
			continue
		}
		r.mu.Lock()
		j.running, j.attempts, failures = false, j.attempts+1, failures+1
		r.requeueBehindOthers(j)
		switch {
		case again && j.attempts < maxAttempts:
			if j.attempts == 1 {
				r.Log.Info("trying again", "event", j.Event, "service", j.Service, "target", j.maskedTarget(), "err", err)
			}
			r.mu.Unlock()
			continue
		case again:
			err = fmt.Errorf("given up after %d tries: %w", j.attempts, err)
		default:
			failures = 0
		}
		if err != nil {
			r.Log.Warn("an action has failed", "event", j.Event, "service", j.Service, "target", j.maskedTarget(), "err", err)
		} else {
			r.Log.Info("done", "event", j.Event, "service", j.Service, "target", j.maskedTarget())
		}
		r.state.Jobs = slices.DeleteFunc(r.state.Jobs, func(o *Job) bool { return o == j })
		r.saveState()
		r.mu.Unlock()
	}
}

// requeueBehindOthers moves the jobs of j's service for j's target to the end of the queue, in the same order. So after a
// failure, other services with jobs for the target have a turn. The caller must hold r.mu.
func (r *Runner) requeueBehindOthers(j *Job) {
	mine, others := lo.FilterReject(r.state.Jobs, func(o *Job, _ int) bool { return o.Service == j.Service && o.target() == j.target() })
	r.state.Jobs = append(others, mine...)
}

// saveState replaces the state file. Only the file's owner may read it, because addresses and keys of webhooks are often secret.
// If the file can't be written, the runner continues, but loses its state when it ends. The caller must hold r.mu.
func (r *Runner) saveState() {
	text, err := json.Marshal(&r.state)
	if err == nil {
		err = wholefile.Replace(r.StateFile, 0o600, false, bytes.NewReader(text).WriteTo)
	}
	if err == nil {
		r.lastSaveError = ""
	} else if err.Error() != r.lastSaveError {
		r.lastSaveError = err.Error()
		r.Log.Warn("cannot save the waiting actions; they are lost if this process ends", "err", err)
	}
}

// target returns the webhook or the command of the job. Jobs with the same target run one after the other.
func (j *Job) target() string { return cmp.Or(j.Action.Webhook, strings.Join(j.Action.Exec, "\x00")) }

// maskedTarget returns the target for the runner's log, without its secrets.
func (j *Job) maskedTarget() string {
	if j.Action.Webhook != "" {
		return redact.HideAddress(j.Action.Webhook)
	}
	return strings.Join(j.Action.Exec, " ")
}

// Job is an action that is due after an event.
type Job struct {
	Event   string        `json:"event"`
	Service string        `json:"service"`
	Profile string        `json:"profile"`
	Action  config.Action `json:"action"`
	Body    []byte        `json:"body"` // a [Message] as JSON

	attempts int  // number of attempts that have failed
	running  bool // an attempt is under way
}

// state is the content of the state file.
type state struct {
	InitStartedAt     time.Time            `json:"init"` // start time of the hinit to which the marks belong
	Conditions        SeenConditions       `json:"marks"`
	EnvFilesChangedAt map[string]time.Time `json:"stale,omitempty"` // time of the last reported change of environment files, by service
	Jobs              []*Job               `json:"jobs"`            // queue of jobs; the jobs of one service are in the order of their events
}

// maxStateSize is the maximum size in bytes of a state file that load accepts.
const maxStateSize = 64 << 20

// loadState reads the state file. If the file is missing, the state is empty.
func loadState(path string) (s state, err error) {
	text, err := wholefile.Read(path, maxStateSize)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		s, err = state{}, fmt.Errorf("cannot read %s, so the waiting actions are lost: %w", path, err)
	}
	if s.Conditions == nil {
		s.Conditions = SeenConditions{}
	}
	s.Jobs = lo.Compact(s.Jobs) // another program may have written null as a job
	return s, err
}

// SignatureHeader is the HTTP header with the signature of a request: "sha256=" and the HMAC-SHA256 of the body in hex digits.
// It proves to the receiver that hinit has sent the request.
const SignatureHeader = "X-Hinit-Signature"

// attemptJob makes one attempt to carry out a job. again reports whether another attempt may succeed.
func attemptJob(ctx context.Context, j *Job) (again bool, err error) {
	if j.Action.Webhook == "" {
		return false, runCommand(ctx, j)
	}
	return sendRequest(ctx, j)
}

// webhookClient is the HTTP client for webhooks. It follows no redirects, because a request that is signed for one server must
// not go to another.
var webhookClient = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// sendRequest makes one attempt to send the request of a webhook. again reports whether another attempt may succeed.
func sendRequest(ctx context.Context, j *Job) (again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, j.Action.Timeout)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, j.Action.Webhook, bytes.NewReader(j.Body))
	if err != nil {
		return false, errors.New("its address is none")
	}
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("User-Agent", "hinit-actions/"+version.Get().Version)
	if file := j.Action.SecretFile; file != "" {
		key, err := wholefile.Read(file, 64<<10)
		if key = bytes.TrimSpace(key); err != nil || len(key) == 0 {
			return true, fmt.Errorf("cannot read the secret: %w", cmp.Or(err, errors.New("the file is empty")))
		}
		mac := hmac.New(sha256.New, key)
		mac.Write(j.Body)
		q.Header.Set(SignatureHeader, "sha256="+hex.EncodeToString(mac.Sum(nil)))
	}
	a, err := webhookClient.Do(q)
	if err != nil {
		if u, is := errors.AsType[*url.Error](err); is {
			err = u.Err // the address may be secret, so drop it from the error
		}
		return true, err
	}
	defer a.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(a.Body, 64<<10)) // read the rest, so that the connection can be reused
	switch {
	case a.StatusCode/100 == 2:
		return false, nil
	case a.StatusCode/100 == 5, a.StatusCode == http.StatusTooManyRequests:
		return true, errors.New("the answer is " + a.Status)
	}
	return false, errors.New("it is refused: the answer is " + a.Status)
}

// runCommand runs the command of j's action in a new session, with j.Body on its standard input. If the action's time limit
// passes, it kills the process group.
func runCommand(ctx context.Context, j *Job) error {
	fd, err := unix.MemfdCreate("event", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	input := os.NewFile(uintptr(fd), "event")
	defer input.Close()
	if _, err := input.WriteAt(append(bytes.Clone(j.Body), '\n'), 0); err != nil { // unlike Write, WriteAt leaves the file offset at 0
		return err
	}
	timed, cancel := context.WithTimeout(ctx, j.Action.Timeout)
	defer cancel()
	x, err := proc.Run(timed, proc.Spec{
		Name: "action", Argv: j.Action.Exec, Files: []*os.File{input, os.Stdout, os.Stderr},
		Env: proc.SetEnv(os.Environ(), map[string]string{"HINIT_EVENT": j.Event, "HINIT_SERVICE": j.Service, "HINIT_PROFILE": j.Profile}),
	})
	switch {
	case timed.Err() != nil && x.Signal == int(unix.SIGKILL):
		return fmt.Errorf("it was killed after %s", j.Action.Timeout)
	case err != nil:
		return err
	case x.Signal != 0:
		return fmt.Errorf("signal %d ended it", x.Signal)
	case x.Code != 0:
		return fmt.Errorf("exit code %d", x.Code)
	}
	return nil
}
