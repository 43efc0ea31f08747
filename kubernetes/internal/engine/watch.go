package engine

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"hinit/internal/guard"
	"hinit/sandbox"
	"hinit/sandbox/gate"
	"hinit/sandbox/mux"
)

// sandboxCheckInterval is how often the engine looks for idle containers and for Sandboxes that will expire.
const sandboxCheckInterval = time.Minute

// Watch implements [sandbox.FullEngine]. While it runs, it also suspends idle containers and postpones the expiry of Sandboxes.
func (e *Engine) Watch(ctx context.Context, labels map[string]string, began, changed func()) error {
	if _, err := e.haveUserNamespaces(ctx); err != nil {
		return err
	}
	pods := e.core.CoreV1().Pods(e.settings.Namespace)
	options := metav1.ListOptions{LabelSelector: labelID}
	list, err := pods.List(ctx, options)
	if err != nil {
		return apiError("watch sandboxes", err)
	}
	options.ResourceVersion = list.ResourceVersion
	events, err := pods.Watch(ctx, options)
	if err != nil {
		return apiError("watch sandboxes", err)
	}
	defer events.Stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	guard.Go("tending sandboxes", func() { e.maintainSandboxes(ctx) })
	began()
	for {
		select {
		case event, open := <-events.ResultChan():
			pod, is := event.Object.(*corev1.Pod)
			if !open || !is {
				return apiError("watch sandboxes", errors.New("the API server has ended the watch"))
			}
			if r, ok := recordOfPod(pod); ok && r.hasLabels(labels) {
				e.rememberReason(r)
				if state := r.container().State; event.Type != watch.Modified || state == sandbox.Exited || state == sandbox.Dead {
					changed()
				}
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// maintainSandboxes suspends idle containers, postpones expiries, and deletes unused warm pools and ended test pods. It does
// so until ctx ends.
func (e *Engine) maintainSandboxes(ctx context.Context) {
	tick := time.NewTicker(min(sandboxCheckInterval, max(e.settings.IdleTime/4, time.Second)))
	defer tick.Stop()
	since := time.Now()
	for {
		records, err := e.records(ctx, labelID)
		for _, r := range records {
			err = errors.Join(err, e.postponeExpiry(ctx, r), e.suspendIdle(ctx, r, since))
		}
		err = errors.Join(err, e.deleteUnusedPools(ctx, since), e.deleteEndedProbes(ctx, time.Now()))
		if err != nil && ctx.Err() == nil {
			e.logf("cannot look after the sandboxes: %v", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// suspendIdle stops a container in which no command and no background job has run for the idle time. since is the start of
// this process, before which uses are unknown.
func (e *Engine) suspendIdle(ctx context.Context, r *record, since time.Time) error {
	c := r.container()
	if e.settings.IdleTime == 0 || c.State != sandbox.Running {
		return nil
	}
	last := e.lastUse(r.id)
	for _, at := range []time.Time{since, c.Started} {
		if at.After(last) {
			last = at
		}
	}
	if time.Since(last) < e.settings.IdleTime {
		return nil
	}
	busy, err := e.hasJobs(ctx, r)
	if err != nil || busy || e.lastUse(r.id).After(last) {
		return err
	}
	e.logf("suspends the sandbox %s: unused for %v; the next command brings it back", r.name, e.settings.IdleTime)
	return e.Stop(ctx, r.id, 0)
}

func (e *Engine) lastUse(id string) time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lastUsed[id]
}

// hasJobs asks the helper whether a background job is running. This question does not count as a use of the container.
func (e *Engine) hasJobs(ctx context.Context, r *record) (bool, error) {
	defer withRequestTimeout(&ctx)()
	before := e.lastUse(r.id)
	conn, err := e.Exec(ctx, r.id, r.container().AttachSpec(path.Join(helperDir(r), gate.ProgramName), true))
	if err != nil {
		return false, err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	conn.(*attachment).untracked.Store(true)
	c, err := mux.NewClient(conn, "")
	if err != nil {
		_ = conn.Close()
		return false, fmt.Errorf("cannot ask the sandbox %s for its jobs: %w", r.name, err)
	}
	defer c.Close()
	st, err := c.Open(mux.Open{Op: mux.OpJobs})
	if err != nil {
		return false, err
	}
	<-st.Done()
	end, err := st.End()
	for _, job := range end.Jobs {
		if job.Running {
			return true, err
		}
	}
	return e.lastUse(r.id).After(before), err
}
