// Package worker works on one task of the shared board, as a worker of the Hermes agent does. It reads the task, does what
// the task's text says, and completes it. Meanwhile it sends heartbeats. Environment variables name the task and the attempt.
//
// It uses the board through a command, so that the example needs no database code. This is hinit-kanban, or the command in
// EXAMPLE_KANBAN_TOOL. The package owns a goroutine for the heartbeats and one for signals, until the process ends.
package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"hinit/examples/agent/internal/helper"
)

// TaskVar is the environment variable with the id of the task. Only a worker has it.
const TaskVar = "HERMES_KANBAN_TASK"

const (
	exitDone      = 0
	exitFailed    = 1
	exitRateLimit = 75 // A quota is used up. This is not a failure, and the dispatcher tries the task again later.

	// heartbeatInterval is the time between two heartbeats.
	heartbeatInterval = 60 * time.Second
	// filePollInterval is the pause between two checks for a file for which the worker waits.
	filePollInterval = 20 * time.Millisecond
)

// task has the fields of a task that the worker uses.
type task struct {
	Task struct {
		Title string `json:"title"`
		Body  string `json:"body"`
	} `json:"task"`
	Runs []struct{} `json:"runs"`
}

// Run works on the task in the environment and returns the exit code.
func Run(stdout, stderr io.Writer) int {
	id := os.Getenv(TaskVar)
	w := worker{taskID: id, runID: os.Getenv("HERMES_KANBAN_RUN_ID"), out: stdout}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
	go w.exitAtSignal(signals)
	go w.sendHeartbeats()
	lock, alone := lockTask(id)
	if !alone {
		fmt.Fprintln(stderr, "Error: another worker is at work on", id)
		return exitFailed
	}
	defer lock.Close()
	t, err := w.readTask()
	if err != nil {
		fmt.Fprintln(stderr, "Error:", err)
		return exitFailed
	}
	fmt.Fprintf(stdout, "working on %s: %s (attempt %d)\n", id, t.Task.Title, len(t.Runs))
	code, done, err := w.runTask(t)
	if err == nil && !done {
		return code
	}
	if err == nil {
		err = w.runTool("complete", id, "--run", w.runID, "--summary", "done: "+t.Task.Title)
	}
	if err != nil {
		fmt.Fprintln(stderr, "Error:", err)
		return exitFailed
	}
	return exitDone
}

// lockTask locks a file for the task in the directory EXAMPLE_KANBAN_LOCKS, if that variable is set. The lock is held until
// the file is closed. Tests use it to check that a task never has two workers. If it has two, lockTask creates the file
// "violated" and alone is false.
func lockTask(id string) (lock *os.File, alone bool) {
	dir := os.Getenv("EXAMPLE_KANBAN_LOCKS")
	if dir == "" {
		return nil, true
	}
	lock, err := os.OpenFile(filepath.Join(dir, id), os.O_CREATE|os.O_RDWR, 0o644)
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err != nil {
		// Ignore the error, because the exit code also reports the violation.
		_ = os.WriteFile(filepath.Join(dir, "violated"), []byte(id+": "+err.Error()+"\n"), 0o644)
	}
	return lock, err == nil
}

type worker struct {
	taskID, runID string
	out           io.Writer
}

// runTask does what the lines of a task's body say. done is false if the worker must not complete the task.
func (w worker) runTask(t task) (code int, done bool, err error) {
	for line := range strings.Lines(t.Task.Body) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if words[0] == "once" { // These words apply only to the first attempt.
			if words = words[1:]; len(t.Runs) > 1 || len(words) == 0 {
				continue
			}
		}
		switch words[0] {
		case "sleep":
			if len(words) < 2 {
				return 0, false, errors.New("sleep needs a duration")
			}
			d, err := time.ParseDuration(words[1])
			if err != nil {
				return 0, false, err
			}
			time.Sleep(d)
		case "await":
			if len(words) < 2 {
				return 0, false, errors.New("await needs a file")
			}
			for _, err := os.Stat(words[1]); err != nil; _, err = os.Stat(words[1]) {
				time.Sleep(filePollInterval)
			}
		case "say":
			fmt.Fprintln(w.out, strings.Join(words[1:], " "))
		case "fail":
			return exitFailed, false, nil
		case "rate-limit":
			return exitRateLimit, false, nil
		case "vanish": // The worker ends without telling the board.
			return exitDone, false, nil
		case "die":
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		case "block":
			return exitDone, false, w.runTool("block", w.taskID, strings.Join(words[1:], " "), "--run", w.runID)
		case "leave": // The worker leaves a daemon behind that ignores SIGTERM.
			if err := (helper.Sleeper{Lifetime: time.Hour, IgnoreTerm: true, DoubleFork: true, Setsid: true}).Start(); err != nil {
				return 0, false, err
			}
		default:
			return 0, false, fmt.Errorf("the task says %q; it may say: sleep D, say TEXT, fail, rate-limit, vanish, die, block REASON, leave, each also after once", words[0])
		}
	}
	return 0, true, nil
}

// exitAtSignal ends the process with code 0 at the first signal.
func (w worker) exitAtSignal(signals <-chan os.Signal) {
	<-signals
	fmt.Fprintf(w.out, "told to end; leaving %s\n", w.taskID)
	os.Exit(exitDone)
}

// sendHeartbeats sends a heartbeat for the task at regular intervals.
func (w worker) sendHeartbeats() {
	for range time.Tick(heartbeatInterval) {
		_ = w.runTool("heartbeat", w.taskID, "--run", w.runID) // Ignore the error, because the next heartbeat has the same effect.
	}
}

func kanbanProgram() string {
	if tool := os.Getenv("EXAMPLE_KANBAN_TOOL"); tool != "" {
		return tool
	}
	return "hinit-kanban"
}

func (w worker) readTask() (t task, err error) {
	out, err := exec.Command(kanbanProgram(), "show", w.taskID, "--json").Output()
	if err != nil {
		return t, fmt.Errorf("cannot read task %s: %w", w.taskID, err)
	}
	return t, json.Unmarshal(out, &t)
}

func (w worker) runTool(args ...string) error {
	if out, err := exec.Command(kanbanProgram(), args...).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot %s %s: %w: %s", args[0], w.taskID, err, strings.TrimSpace(string(out)))
	}
	return nil
}
