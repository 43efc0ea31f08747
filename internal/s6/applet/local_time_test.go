package applet

import (
	"testing"
	"time"
)

func TestLocalTimeHasNineDigits(t *testing.T) {
	when := time.Date(2026, 11, 21, 0, 8, 34, 292_924_620, time.UTC)
	if got, want := string(appendLocalTime(nil, when)), "2026-11-21 00:08:34.292924620"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
