package mux

import (
	"bytes"
	"encoding/json"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestAPausedSandboxCollectedAGoroutineForEachQuestion checks that repeated Pings to a helper that
// reads nothing occupy only one goroutine.
func TestAPausedSandboxCollectedAGoroutineForEachQuestion(t *testing.T) {
	c, _ := connect(t)
	written := make(chan error, 1)
	go func() { written <- c.writer.Write(KindOpen, 1, make([]byte, maxOpenBytes)) }() // The data exceeds the buffer of the socket.
	time.Sleep(100 * time.Millisecond)
	before := runtime.NumGoroutine()
	for range 200 {
		c.Ping()
		if c.AnswersWithin(time.Microsecond) {
			t.Fatal("a peer that reads nothing has answered")
		}
	}
	if now := runtime.NumGoroutine(); now > before+1 {
		t.Errorf("%d goroutines wait", now-before)
	}
	c.Close()
	<-written
}

// TestAHostileHelperFilledTheServicesMemory checks that a forged list of jobs and a misdirected
// request take little memory of a client.
func TestAHostileHelperFilledTheServicesMemory(t *testing.T) {
	c, p := connect(t)
	s := openChannel(t, c, p)
	list := []byte(`{"code":1,"jobs":[` + strings.Repeat("{},", maxEndBytes/3-10) + `{}]}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := p.w.Write(KindEnd, s.id, list); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	runtime.ReadMemStats(&after)
	if end, err := s.End(); err != nil || end.Code != 1 || len(end.Jobs) > MaxJobs {
		t.Errorf("%d jobs, %v", len(end.Jobs), err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 4*maxEndBytes {
		t.Errorf("a frame of %d bytes took %d", len(list), took)
	}
	_ = p.w.Write(KindOpen, 9, make([]byte, MaxData+1)) // An error means that the client has already closed the connection.
	<-c.done
	if err := c.Err(); err == nil || !strings.Contains(err.Error(), "a frame of kind 2 with 131073 bytes") {
		t.Error(err)
	}
}

// TestALongErrorLeftTheClientWaiting checks that the end of a channel arrives even if the error has a long path, and if
// all background commands have the longest texts.
func TestALongErrorLeftTheClientWaiting(t *testing.T) {
	jobs := make(Jobs, MaxJobs)
	for i := range jobs {
		jobs[i] = Job{ID: "1-1", Command: strings.Repeat("<", 1000), Started: time.Now(), Ended: time.Now(), Output: 1 << 60, Dropped: 1 << 60}
	}
	near, far := socketPair(t)
	defer far.Close()
	served := make(chan struct{})
	go func() {
		defer close(served)
		c, err := Accept(far, "x")
		if err != nil {
			t.Error(err)
			return
		}
		Serve(c, nil, func(ch *Channel, _ Open) {
			ch.Kill = func(time.Duration) {}
			if err := ch.Finish(End{Code: 1, Fault: Refused, Text: "no " + strings.Repeat("<", MaxData), Jobs: jobs}); err != nil {
				t.Error(err)
			}
		})
	}()
	c, err := NewClient(near, "x")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { c.Close(); <-served }()
	ch, err := c.Open(Open{Op: OpGetTree})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-ch.Done():
	case <-time.After(5 * time.Second):
		t.Fatal("the client waits for ever")
	}
	end, err := ch.End()
	want, _ := json.Marshal(jobs)
	if got, _ := json.Marshal(end.Jobs); err != nil || !bytes.Equal(got, want) || !strings.HasPrefix(end.Text, "no <") {
		t.Errorf("%v, %d jobs, a text of %d bytes", err, len(end.Jobs), len(end.Text))
	}
}
