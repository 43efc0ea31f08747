// Package cronspec parses schedules in the syntax of cron, and computes when they are due.
//
// A library defines the syntax: five fields, or a word such as @daily. A day must match both the day of the month and the
// weekday. The package refuses a schedule that will never be due. It reads only the time zone data of the container, and owns no
// goroutine.
package cronspec

import (
	"errors"
	"fmt"
	"strings"
	"time"

	cron "github.com/netresearch/go-cron"
)

// Spec is a schedule. The zero Spec is never due.
type Spec struct {
	schedule         cron.Schedule
	zone             *time.Location
	oncePerClockTime bool // the schedule names minutes and hours of a day, without "*"
}

// Parse parses a schedule. zone is the name of a time zone such as "Europe/Berlin", or "" for the container's time zone. Parse
// reads the time zone's file; the methods of the result don't read files.
func Parse(text, zone string) (Spec, error) {
	if strings.TrimSpace(text) != text || text == "" {
		return Spec{}, errors.New(`expected a schedule such as "0 3 * * *"`)
	}
	if name, rest, _ := strings.Cut(text, " "); strings.Contains(name, "=") {
		_, in, _ := strings.Cut(name, "=")
		if name != "CRON_TZ="+in && name != "TZ="+in {
			return Spec{}, fmt.Errorf("%q is no variable of a schedule; only CRON_TZ is", name)
		}
		if zone != "" {
			return Spec{}, fmt.Errorf("the time zone is set twice: %s and timezone: %s; remove one of them", name, zone)
		}
		text, zone = strings.TrimSpace(rest), in
	}
	if text == "@reboot" {
		return Spec{}, errors.New("@reboot is no time; a task runs at each boot with once: boot")
	}
	location, err := LoadZone(zone)
	if err != nil {
		return Spec{}, err
	}
	schedule, err := cron.ParseStandard(text)
	if err != nil {
		return Spec{}, fmt.Errorf("%w; the five fields are minute, hour, day of the month, month and weekday", err)
	}
	fields := append(strings.Fields(text), "")
	spec := Spec{schedule, location, fields[0] != "@hourly" && fields[0] != "@every" && fields[0][0] != '*' && !strings.HasPrefix(fields[1], "*")}
	if spec.Next(time.Now()).IsZero() {
		return Spec{}, errors.New("there is no such day in the next five years")
	}
	return spec, nil
}

// LoadZone returns the time zone with the given name, or the container's time zone if the name is "".
func LoadZone(name string) (*time.Location, error) {
	if name == "" {
		return time.Local, nil
	}
	location, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("there is no time zone %q in this container; install its zone data (package tzdata), or write the schedule in UTC", name)
	}
	return location, nil
}

// Next returns the first time after t at which the schedule is due, or the zero time if none exists.
//
// Changes to and from summer time have the effect that cron(8) describes. A schedule with "*" for the minute or hour follows
// the new time at once. Any other schedule is due once for each time on the clock: at the first of two equal times, and later
// if the clock skips its time.
func (s Spec) Next(t time.Time) time.Time {
	if s.schedule == nil {
		return time.Time{}
	}
	t = t.In(s.zone)
	if !s.oncePerClockTime {
		return s.schedule.Next(t)
	}
	for clock := t.UTC().Add(s.utcOffset(t) - maxClockShift); ; { // UTC represents a clock that is never changed
		if clock = s.schedule.Next(clock); clock.IsZero() {
			return clock
		}
		at := clock.Add(-s.utcOffset(clock.AddDate(0, 0, -1))) // the time as if the clock had not been changed since the day before
		if changed := clock.Add(-s.utcOffset(at)); s.utcOffset(changed) == s.utcOffset(at) {
			at = changed
		}
		if at.After(t) {
			return at.In(s.zone)
		}
	}
}

// maxClockShift is the largest time by which clocks are set forward. A time of day that is skipped is due this much later.
const maxClockShift = 2 * time.Hour

// utcOffset returns how far clocks in the zone are ahead of UTC at the time t.
func (s Spec) utcOffset(t time.Time) time.Duration {
	_, seconds := t.In(s.zone).Zone()
	return time.Duration(seconds) * time.Second
}
