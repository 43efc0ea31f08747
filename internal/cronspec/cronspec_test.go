package cronspec

import (
	"slices"
	"testing"
	"time"
)

func TestNext(t *testing.T) {
	at := func(text string) time.Time {
		when, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return when
	}
	for _, tt := range []struct{ text, zone, after, want string }{
		{"0 3 * * *", "UTC", "2026-01-01T00:00:00Z", "2026-01-01T03:00:00Z"},
		{"0 3 * * *", "UTC", "2026-01-01T03:00:00Z", "2026-01-02T03:00:00Z"},
		{"*/15 9-17 * * MON-FRI", "UTC", "2026-01-02T17:45:00Z", "2026-01-05T09:00:00Z"}, // the next time after Friday is on Monday
		{"0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z"},
		{"@daily", "UTC", "2026-12-31T23:59:59Z", "2027-01-01T00:00:00Z"},
		{"CRON_TZ=Europe/Berlin 0 3 * * *", "", "2026-01-01T00:00:00Z", "2026-01-01T02:00:00Z"},
		{"0 3 * * *", "Europe/Berlin", "2026-07-01T00:00:00Z", "2026-07-01T01:00:00Z"},
		// This night has no 02:30, so the job runs an hour later.
		{"30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-29T01:30:00Z"},
		{"30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z"}, // this night has 02:30 twice; the job runs at the first
	} {
		s, err := Parse(tt.text, tt.zone)
		if err != nil {
			if tt.zone != "UTC" {
				t.Logf("%s: %v", tt.text, err) // fails if this machine has no time zone data
				continue
			}
			t.Fatal(err)
		}
		if got := s.Next(at(tt.after)); !got.Equal(at(tt.want)) {
			t.Errorf("%s in %q after %s: %s, want %s", tt.text, tt.zone, tt.after, got.UTC().Format(time.RFC3339), tt.want)
		}
	}
	if _, err := Parse("0 0 30 2 *", "Asia/Kathmandu"); err == nil {
		t.Error("there is a 30 February")
	}
	if !(Spec{}).Next(time.Now()).IsZero() {
		t.Error("no schedule is due")
	}
}

// A daily job must run once a day: also at 02:30 in the night in which clocks are set back, and on a day without midnight.
func TestEachTimeOnTheClockIsDueOnce(t *testing.T) {
	for _, tt := range []struct {
		text, zone, after string
		want              []string
	}{
		{"30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", []string{"10-25T00:30", "10-26T01:30"}},
		{"30 2 * * *", "Europe/Berlin", "2026-10-25T01:10:00Z", []string{"10-26T01:30"}}, // 02:10 in Berlin, for the second time in this night
		{"0,30 2,3 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", []string{"10-25T00:00", "10-25T00:30", "10-25T02:00", "10-25T02:30"}},
		{"*/30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", []string{"10-25T00:00", "10-25T00:30", "10-25T01:00", "10-25T01:30", "10-26T01:00"}},
		{"0 * * * *", "Europe/Berlin", "2026-10-24T23:10:00Z", []string{"10-25T00:00", "10-25T01:00", "10-25T02:00"}},
		{"@hourly", "Europe/Berlin", "2026-10-24T23:10:00Z", []string{"10-25T00:00", "10-25T01:00", "10-25T02:00"}},
		{"@every 1h", "Europe/Berlin", "2026-10-24T23:10:00Z", []string{"10-25T00:10", "10-25T01:10", "10-25T02:10"}},
		{"30 1 * * *", "America/New_York", "2026-10-31T12:00:00Z", []string{"11-01T05:30", "11-02T06:30"}},
		{"45 1 * * *", "Australia/Lord_Howe", "2026-04-04T10:00:00Z", []string{"04-04T14:45", "04-05T15:15"}},
		{"30 0 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", []string{"10-24T22:30", "10-25T23:30"}},
		{"0,30 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", []string{"03-29T01:00", "03-29T01:30", "03-30T00:00"}},
		{"30 2 * * *", "Europe/Berlin", "2026-03-29T01:10:00Z", []string{"03-29T01:30", "03-30T00:30"}}, // 03:10 in Berlin; the run of 02:30 is due at 03:30
		{"*/20 * * * *", "Europe/Berlin", "2026-03-29T00:30:00Z", []string{"03-29T00:40", "03-29T01:00"}},
		{"@daily", "Africa/Cairo", "2026-04-22T12:00:00Z", []string{"04-22T22:00", "04-23T22:00", "04-24T21:00"}}, // the 24th has no 00:00
		{"@daily", "America/Santiago", "2026-09-04T12:00:00Z", []string{"09-05T04:00", "09-06T04:00", "09-07T03:00"}},
		{"@daily", "America/Havana", "2026-10-31T12:00:00Z", []string{"11-01T04:00", "11-02T05:00"}}, // 00:00 comes twice
	} {
		s, err := Parse(tt.text, tt.zone)
		if err != nil {
			t.Logf("%s: %v", tt.text, err) // fails if this machine has no time zone data
			continue
		}
		at, err := time.Parse(time.RFC3339, tt.after)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for range tt.want {
			at = s.Next(at)
			got = append(got, at.UTC().Format("01-02T15:04"))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s in %s after %s is due at %v, want %v", tt.text, tt.zone, tt.after, got, tt.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"0 3 * * *", "@daily", "@every 5m", "CRON_TZ=UTC * * * * *", "TZ=", "TZ=0", "*/0 * * * *", "1-59/2,*/3 22-2 L * 7", "a=b", " "} {
		f.Add(text, "")
		f.Add(text, "UTC")
	}
	f.Fuzz(func(t *testing.T, text, zone string) {
		s, err := Parse(text, zone)
		if err != nil {
			return
		}
		now := time.Now()
		if next := s.Next(now); !next.After(now) {
			t.Errorf("%q in %q is due at %s, which is not after %s", text, zone, next, now)
		}
	})
}
