package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/boot"
	"hinit/internal/guard"
	"hinit/internal/proc"
	"hinit/logrotate/packer"
)

// bootProgram is the state of the boot program while it does its job.
type bootProgram struct {
	answers chan boot.Answer // answers of PID 1 that are not about a hook

	mu      sync.Mutex
	encoder *json.Encoder
	hooks   map[int]chan boot.Answer // channels for the answers about running hooks, by the number of the hook
}

// Main runs the boot program, see [boot.Job]. It reads the job, and later the answers of PID 1, from in, and writes messages
// to PID 1 to out. It returns the exit code.
func Main(in io.Reader, out io.Writer) int {
	var job boot.Job
	decoder := json.NewDecoder(in)
	if err := decoder.Decode(&job); err != nil {
		fmt.Fprintf(os.Stderr, "[hinit] cannot read what is to be done at the boot: %v; only hinit starts this program\n", err)
		return 1
	}
	p := &bootProgram{answers: make(chan boot.Answer, 1), encoder: json.NewEncoder(out), hooks: make(map[int]chan boot.Answer)}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	guard.Go("hearing the answers of hinit", func() {
		defer cancel()
		p.readAnswers(decoder)
	})
	o := optionsOf(job)
	o.Say = func(l boot.LogLine) { p.send(boot.Message{AgentLogLine: &l}) }
	var err error
	switch {
	case job.Repair:
		p.repair(ctx, o, job.FilledFromImage)
	case job.Examine:
		p.examine(o, job)
	case job.CompressLogs != nil:
		p.send(boot.Message{CompressedLogs: packer.Pack(ctx, o.Agent, job.CompressLogs, job.MinLogAge)})
	case job.MeasureKind == boot.EnforceShares:
		p.send(boot.Message{Measurements: shareResources(ctx, o, job.Gateways)})
	case job.MeasureKind == boot.MeasureSharedMemory:
		p.send(boot.Message{Measurements: sharedMemory(ctx, o, job.Gateways, proc.ReadContainerMemory())})
	case job.MeasureKind == boot.MeasureRecordMemory:
		err = recordMemory(o, job.Gateways)
	case job.MeasureKind == boot.MeasureAdmission:
		p.send(boot.Message{Measurements: admitGateways(o, job.Gateways, proc.ReadContainerMemory())})
	case job.Gateways != nil:
		measureDisk(ctx, o, job.Gateways, p.send)
	case job.ChangeOwners:
		moveHomes(ctx, o.Options, job.StartingProfile)
	case job.FillFromImage:
		s := boot.NewStep(o.Say)
		err = FillEmptyHome(ctx, o, s)
		p.send(boot.Message{Report: &boot.Report{FilledFromImage: s.FilledFromImage}})
	default:
		err = p.boot(ctx, o, job)
	}
	done := boot.Done{}
	if err != nil {
		done.Error = err.Error()
	}
	p.send(boot.Message{Done: &done})
	return 0
}

// optionsOf returns the options in job, and fills in the fields that depend on this process.
func optionsOf(job boot.Job) Options {
	o := Options{Options: job.Options}
	o.Env = os.LookupEnv
	o.Agent = boot.CallerAsAgent().Actor
	if !job.ServicesOnly {
		o.Agent = boot.NewAgent(job.AgentUser, job.UserInPasswd).Actor
	}
	return o
}

func (p *bootProgram) send(m boot.Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.encoder.Encode(m) // fails only if PID 1 is gone; then readAnswers ends the program
}

func (p *bootProgram) sendLogLine(l boot.LogLine) { p.send(boot.Message{LogLine: &l}) }

func (p *bootProgram) readAnswers(from *json.Decoder) {
	for {
		var a boot.Answer
		if from.Decode(&a) != nil {
			return
		}
		p.mu.Lock()
		waits := p.hooks[a.HookNumber]
		delete(p.hooks, a.HookNumber)
		p.mu.Unlock()
		if waits != nil {
			waits <- a
		} else {
			p.answers <- a
		}
	}
}

// boot does the work that must be done before the first service starts.
func (p *bootProgram) boot(ctx context.Context, o Options, job boot.Job) error {
	hooks := job.Hooks
	var memory *StepRecord
	if !job.ServicesOnly {
		memory = NewStepRecord(o, job.Version, hooks)
		report := p.nextAnswer(ctx).Report
		if report == nil {
			return errNoAnswer
		}
		CompleteBoot(ctx, o, report)
		p.send(boot.Message{Report: report})
		env := p.nextAnswer(ctx).Env
		if report.Unusable {
			memory = nil
		} else {
			memory.Load(ctx, env, report.FilledFromImage)
		}
		var err error
		if hooks, err = p.addHooks(o, hooks, report.Unusable); err != nil {
			return err
		}
		WriteVariableFiles(o, report.Env)
	}
	for i := range hooks { // a failure of optional hooks, such as the image's Python steps, does not end the boot
		hooks[i].Number, hooks[i].Required = i+1, hooks[i].Required || hooks[i].ContInit && job.EndOnFailedScript
	}
	p.send(boot.Message{HookCount: new(len(hooks))})
	steps, err := RunHooks(ctx, hooks, p, memory, job.EndOnFailedHook, p.sendLogLine)
	p.send(boot.Message{Steps: steps})
	if err != nil || memory == nil {
		return err
	}
	if err := memory.Save(ctx); err != nil {
		p.sendLogLine(boot.LogLine{Text: "[hinit] " + err.Error()})
	}
	return nil
}

var errNoAnswer = errors.New("hinit does not answer")

// nextAnswer returns the next answer of PID 1 that isn't about a hook. If PID 1 is gone, the answer is empty.
func (p *bootProgram) nextAnswer(ctx context.Context) boot.Answer {
	select {
	case a := <-p.answers:
		return a
	case <-ctx.Done():
		return boot.Answer{}
	}
}

// addHooks adds scripts of the image and of the user to the configured hooks. If unusable is set, it leaves out the hook that
// needs the data volume.
func (p *bootProgram) addHooks(o Options, hooks []boot.Hook, unusable bool) ([]boot.Hook, error) {
	switch {
	case o.ImageFillsHome:
		imageHook, err := ImageHook()
		if err != nil {
			return nil, err
		}
		hooks = append([]boot.Hook{imageHook}, hooks...)
	case !unusable: // RebootstrapHook needs a readable volume
		if again, wanted := RebootstrapHook(o); wanted {
			hooks = append(hooks, again)
		}
	}
	scripts, lines := ContInitHooks(boot.ContInitDir, o.Agent)
	for _, l := range lines {
		p.sendLogLine(l)
	}
	return append(hooks, scripts...), nil
}

// RunHook implements [Runner]: it asks PID 1 to run the hook, and waits for the answer.
func (p *bootProgram) RunHook(ctx context.Context, h boot.Hook) (int, error) {
	answer := make(chan boot.Answer, 1)
	p.mu.Lock()
	p.hooks[h.Number] = answer
	p.mu.Unlock()
	p.send(boot.Message{Hook: &h})
	select {
	case a := <-answer:
		if a.HookError != "" {
			return 0, errors.New(a.HookError)
		}
		return a.HookExitCode, nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

const (
	// syncDelay is the delay before the sync of the files that the boot has copied to an empty data directory. A process can't
	// end while it syncs, and many containers run only for a short time.
	syncDelay = 5 * time.Second
	// progressInterval is the minimum time between two messages about the progress of a repair.
	progressInterval = 200 * time.Millisecond
)

// repair runs [Repair] while the container runs, and reports its progress to PID 1. If the boot has copied files to an empty
// data directory (planted), repair syncs them.
func (p *bootProgram) repair(ctx context.Context, o Options, planted bool) {
	var shown time.Time
	synced := time.After(syncDelay)
	r := Repair(ctx, o, func(now client.Repair) {
		if time.Since(shown) > progressInterval {
			shown = time.Now()
			p.send(boot.Message{Repair: &now})
		}
	})
	if o.Agent.SwitchesIdentity() {
		p.send(boot.Message{Repair: &r.Repair})
	}
	if r.Changed+r.Failed+r.Refused > 0 || r.StopReason != "" {
		p.send(boot.Message{RepairSummary: r.String()})
	}
	if !planted {
		return
	}
	select {
	case <-synced:
		_ = blocking.Do(blocking.Volume, func() error { return syncTree(o.Home) })
	case <-ctx.Done():
	}
}
