package inside

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/sandbox/mux"
)

const (
	// maxJobOutput is how many bytes of a background command's output the helper keeps. It keeps an ended command for
	// jobKeepTime.
	maxJobOutput = 200_000
	jobKeepTime  = 30 * time.Minute
)

// jobs are the background commands of all clients.
type jobs struct {
	server  *server
	mu      sync.Mutex
	started int    // Number of commands that were ever started; command IDs derive from it.
	jobs    []*job // Background commands, in the order of their starts.
}

// job is a background command. The mutex of jobs guards its fields, except the ring, which has its own mutex.
type job struct {
	mux.Job
	run  *run
	out  *outputRing
	done chan struct{} // Closed when the command has ended.
}

// dropOld drops commands that ended more than jobKeepTime ago. If too many commands remain, it also drops younger ended
// commands, the oldest first. The caller holds the lock.
func (j *jobs) dropOld() {
	drop := func(at int) {
		j.server.loop.forget(j.jobs[at].run)
		j.jobs = slices.Delete(j.jobs, at, at+1)
	}
	for at, b := range slices.Backward(j.jobs) {
		if !b.Running && time.Since(b.Ended) > jobKeepTime {
			drop(at)
		}
	}
	for len(j.jobs) >= mux.MaxJobs {
		at := slices.IndexFunc(j.jobs, func(b *job) bool { return !b.Running })
		if at < 0 {
			return
		}
		drop(at)
	}
}

func (j *jobs) start(ch *channel) mux.End {
	spec, _, fault := j.server.prepare(ch)
	if fault != nil {
		return *fault
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.dropOld()
	if len(j.jobs) >= mux.MaxJobs {
		return mux.End{Fault: mux.NotBegun, Code: 126, Text: fmt.Sprintf("%d background commands run already", mux.MaxJobs)}
	}
	own, child, err := pipe(false)
	if err != nil {
		return notBegunEnd(err)
	}
	b := &job{out: &outputRing{written: make(chan struct{})}, done: make(chan struct{})}
	spec.Files = append(spec.Files, nil, child, child)
	r, pid, err := j.server.loop.spawn(spec, milliseconds(ch.request.Timeout), milliseconds(ch.request.Grace), true, func(r *run) {
		guard.Go("noting the end of a background command", func() { j.recordEnd(b, r) })
	})
	child.Close()
	if err != nil {
		own.Close()
		return notBegunEnd(err)
	}
	j.started++
	b.run = r
	b.Job = mux.Job{ID: fmt.Sprintf("%d-%d", pid, j.started), Command: commandText(ch.request), PID: pid, Started: time.Now(), Running: true}
	j.jobs = append(j.jobs, b)
	guard.Go("reading from a background command", func() {
		_, _ = own.WriteTo(b.out)
		b.out.close()
		own.Close()
	})
	return mux.End{Jobs: []mux.Job{b.Job}}
}

func commandText(open mux.Open) string {
	text := cmp.Or(open.Command, strings.Join(open.Argv, " "))
	return text[:min(len(text), 1000)]
}

func (j *jobs) recordEnd(b *job, r *run) {
	// Give leftover processes time to write their last output.
	time.AfterFunc(leftoverOutputTime, guard.WrapFunc("ending the output of a background command", b.out.close))
	j.mu.Lock()
	defer j.mu.Unlock()
	b.Running, b.Ended, b.TimedOut = false, time.Now(), r.end.TimedOut
	if b.Code, b.Signal = r.end.Code, r.end.Signal; b.Signal > 0 {
		b.Code = 128 + b.Signal
	}
	close(b.done)
}

// withJob calls do with the background command in the request, and then returns the state of that command. do returns the
// number of processes that survived SIGKILL.
func (j *jobs) withJob(ch *channel, do func(b *job) (survivors int)) mux.End {
	id := ch.request.Job
	j.mu.Lock()
	at := slices.IndexFunc(j.jobs, func(b *job) bool { return b.ID == id })
	if at < 0 {
		j.mu.Unlock()
		return mux.End{Fault: mux.NoJob, Text: "no background command " + id}
	}
	b := j.jobs[at]
	j.mu.Unlock()
	survivors := do(b)
	j.mu.Lock()
	defer j.mu.Unlock()
	return mux.End{Survivors: survivors, Jobs: []mux.Job{b.snapshot()}}
}

func (b *job) snapshot() mux.Job {
	now := b.Job
	now.Output, now.Dropped = b.out.size()
	return now
}

func (j *jobs) list() []mux.Job {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.dropOld()
	var all []mux.Job
	for _, b := range j.jobs {
		all = append(all, b.snapshot())
	}
	return all
}

// sendOutput sends the kept output of a background command. If the request has Follow, sendOutput then sends new output until
// the command ends. It always returns 0, the number of survivors that [channel.withJob] expects.
func (ch *channel) sendOutput(b *job) (survivors int) {
	for at := int64(0); ; {
		data, next, grown := b.out.read(at)
		at = next
		_, err := ch.Output.Write(data)
		if err != nil || len(data) == 0 && (grown == nil || !ch.request.Follow || !ch.awaitOrCancel(grown)) {
			break
		}
	}
	if ch.request.Follow { // Wait even if the output is closed, because the command may continue without output.
		ch.awaitOrCancel(b.done)
	}
	return 0
}

// kill ends the process tree of a background command, even if only its main process has ended. It returns the number of
// processes that survived.
func (ch *channel) kill(b *job) (survivors int) {
	gone := make(chan int, 1)
	ch.server.loop.endTree(b.run, milliseconds(ch.request.Grace), func(r *run) { gone <- r.end.Survivors })
	survivors = <-gone
	ch.awaitOrCancel(b.done) // The loop closes b.done after it has recorded the end.
	return survivors
}

// awaitOrCancel waits until event is closed. It returns false if the client has canceled the request.
func (ch *channel) awaitOrCancel(event <-chan struct{}) bool { return pause.Until(ch.ctx, event) }

// outputRing keeps the newest maxJobOutput bytes that were written to it.
type outputRing struct {
	mu      sync.Mutex
	data    []byte
	start   int64         // Offset of data in the whole output.
	written chan struct{} // Closed and replaced at the next write; nil when the output is complete.
}

// Write appends p and drops the oldest bytes. It never fails.
func (r *outputRing) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.data = append(r.data, p...)
	if over := len(r.data) - maxJobOutput; over > maxJobOutput/4 { // Dropping copies the data, so drop seldom.
		r.data = append(r.data[:0], r.data[over:]...)
		r.start += int64(over)
	}
	if r.written != nil {
		close(r.written)
		r.written = make(chan struct{})
	}
	return len(p), nil
}

func (r *outputRing) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.written != nil {
		close(r.written)
		r.written = nil
	}
}

func (r *outputRing) size() (written, dropped int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.start + int64(len(r.data)), r.start
}

// read returns kept bytes from the offset at, up to the size of one frame, and the offset after them. grown is closed when
// more bytes arrive. It is nil if the output is complete.
func (r *outputRing) read(at int64) (data []byte, next int64, grown <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	from := min(max(at-r.start, 0), int64(len(r.data)))
	data = slices.Clone(r.data[from:min(from+mux.MaxData, int64(len(r.data)))])
	return data, max(at, r.start) + int64(len(data)), r.written
}
