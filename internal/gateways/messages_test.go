package gateways

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"hinit/internal/container/initlog"
)

type lineChan chan string

func (l lineChan) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

func (l lineChan) takeText() (text string) {
	for len(l) > 0 {
		text += <-l
	}
	return text
}

// The messages about all slots of s6 together must have a limit.
func TestAnAgentFilledTheLogByMakingSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := make(lineChan, 1000)
		m := Manager{}
		m.Logger = initlog.New(func() io.Writer { return out }, nil, initlog.NewTerminationLog())
		for i := range 500 {
			m.LogSlots("cannot supervise the service directory %q: %s", fmt.Sprint(i), "it has no run")
		}
		if got := out.takeText(); strings.Count(got, "\n") != maxMessages {
			t.Errorf("the log has %q", got)
		}
		time.Sleep(messagePeriod)
		synctest.Wait()
		if got := out.takeText(); !strings.Contains(got, `"499": it has no run (the last of 500 messages`) {
			t.Errorf("after the period the log has %q", got)
		}
	})
}

// A delay of the boot that ends by itself belongs into the container log only, not into the status.
func TestTheStatusWarnedOfSlowSlotsForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := make(lineChan, 10)
		warned := func(text string) bool { t.Errorf("the status warns: %s", text); return true }
		log := initlog.New(func() io.Writer { return out }, warned, initlog.NewTerminationLog())
		var m Manager
		m.writeBootLog(t.Context(), &BootInput{Logger: log, SlotsMade: func() <-chan struct{} { return make(chan struct{}) }}, func() error { return nil })
		<-m.boot.bootLogWritten
		if got := out.takeText(); !strings.Contains(got, "warning: not all slots of gateways are made") {
			t.Errorf("the log has %q", got)
		}
	})
}

// A warning that comes after too many others, and still applies later, must be in the log, not only in the status.
func TestTheLastOfTooManyMessagesIsInTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := make(lineChan, 1000)
		log := initlog.New(func() io.Writer { return out }, nil, initlog.NewTerminationLog())
		var m rateLimitedLog
		for range 3 {
			for i := range 30 {
				m.write(log, "coder", fmt.Sprintf("message %d", i))
			}
			m.write(log, "writer", "another subject")
			m.write(log, "writer", "another subject")
			if got := out.takeText(); strings.Count(got, "message") != maxMessages || strings.Count(got, "another") != 1 || !strings.HasSuffix(got, "another subject\n") {
				t.Errorf("within the period the log has %q", got)
			}
			time.Sleep(messagePeriod)
			synctest.Wait()
			if got := out.takeText(); !strings.HasSuffix(got, "message 29 (the last of 30 messages within a minute, of which the log has the first 20)\n") {
				t.Errorf("after the period the log has %q", got)
			}
		}
		for i := range 10 * maxSubjects {
			m.write(log, fmt.Sprint("subject ", i), fmt.Sprint("subject ", i))
		}
		if n := strings.Count(out.takeText(), "subject"); n != maxSubjects+maxMessages {
			t.Errorf("%d subjects wrote %d lines", 10*maxSubjects, n)
		}
		time.Sleep(messagePeriod)
	})
}
