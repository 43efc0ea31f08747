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
