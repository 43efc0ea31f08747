package pause_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"hinit/internal/pause"
)

func TestAPauseEndsWithItsTimeOrItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		if !pause.For(t.Context(), time.Hour) || time.Since(begin) != time.Hour {
			t.Errorf("an hour took %v", time.Since(begin))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if begin = time.Now(); pause.For(ctx, time.Hour) || time.Since(begin) != time.Minute {
			t.Errorf("with a minute left it took %v", time.Since(begin))
		}
	})
}

func TestAnEventOrAnEndedContextEndsTheWait(t *testing.T) {
	events := make(chan int, 1)
	if !pause.Send(t.Context(), events, 7) || !pause.Until(t.Context(), events) {
		t.Error("an event that was sent was not received")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if pause.Until(ended, events) {
		t.Error("an event was received from an empty channel")
	}
	events <- 7
	if pause.Send(ended, events, 8) || <-events != 7 {
		t.Error("an event was sent to a full channel")
	}
}
