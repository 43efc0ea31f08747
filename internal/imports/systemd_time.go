package imports

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"hinit/internal/cronspec"
)

// spanPart matches a number with its unit. Without a unit it means seconds.
var spanPart = regexp.MustCompile(`^(\d+(?:\.\d+)?)\s*([a-zA-Zµ]*)\s*`)

const day = 24 * time.Hour

// spanUnits are the units of systemd.time(7).
var spanUnits = map[string]time.Duration{
	"usec": time.Microsecond, "us": time.Microsecond, "µs": time.Microsecond, "msec": time.Millisecond, "ms": time.Millisecond,
	"seconds": time.Second, "second": time.Second, "sec": time.Second, "s": time.Second, "": time.Second,
	"minutes": time.Minute, "minute": time.Minute, "min": time.Minute, "m": time.Minute,
	"hours": time.Hour, "hour": time.Hour, "hr": time.Hour, "h": time.Hour, "days": day, "day": day, "d": day,
	"weeks": 7 * day, "week": 7 * day, "w": 7 * day, "months": 2629800 * time.Second, "month": 2629800 * time.Second, "M": 2629800 * time.Second,
	"years": 31557600 * time.Second, "year": 31557600 * time.Second, "y": 31557600 * time.Second,
}

// timeSpan reads a time span such as 5min 20s.
func timeSpan(value string) (string, error) {
	sum, rest := time.Duration(0), value
	for rest != "" {
		part := spanPart.FindStringSubmatch(rest)
		if part == nil {
			break
		}
		number, err := strconv.ParseFloat(part[1], 64)
		unit, known := spanUnits[part[2]]
		if err != nil || !known {
			break
		}
		sum += time.Duration(number * float64(unit))
		rest = rest[len(part[0]):]
	}
	if rest != "" || sum <= 0 {
		return "", fmt.Errorf("hinit has no such time (%s); its own default counts", value)
	}
	return durationText(sum), nil
}

// calendarNames are the short forms of systemd.time(7).
var calendarNames = map[string]string{
	"minutely": "*:*", "hourly": "*:00", "daily": "*-*-*", "weekly": "Mon", "monthly": "*-*-01", "yearly": "*-01-01", "annually": "*-01-01",
	"quarterly": "*-01,04,07,10-01", "semiannually": "*-01,07-01",
}

// calendar makes a cron schedule and its time zone from an OnCalendar.
func calendar(value string) (cron, zone string, err error) {
	no := func(why string) (string, string, error) {
		return "", "", fmt.Errorf("cron has no %s (%s)", why, value)
	}
	weekday, month, dayOfMonth, hour, minute := "*", "*", "*", "0", "0"
	for word := range strings.FieldsSeq(cmp.Or(calendarNames[value], value)) {
		first := word[0]
		switch {
		case strings.Contains(word, ":"):
			parts := strings.Split(word, ":")
			hour, minute = parts[0], parts[1]
			if len(parts) > 2 && strings.Trim(parts[2], "0") != "" {
				return no("seconds")
			}
		case strings.Contains(word, "~"):
			return no("days before the end of a month")
		case strings.Count(word, "-") > 0 && (first == '*' || first >= '0' && first <= '9'):
			parts := strings.Split(word, "-")
			if len(parts) == 3 && parts[0] != "*" {
				return no("years")
			}
			month, dayOfMonth = parts[len(parts)-2], parts[len(parts)-1]
		case strings.Contains(word, "/") || word == "UTC":
			zone = word
		default:
			var days []string
			for part := range strings.SplitSeq(word, ",") {
				from, to, isRange := strings.Cut(part, "..")
				from, to = from[:min(3, len(from))], to[:min(3, len(to))]
				if isRange {
					from += "-" + to
				}
				days = append(days, strings.ToUpper(from))
			}
			weekday = strings.Join(days, ",")
		}
	}
	if weekday != "*" && dayOfMonth != "*" {
		return no("day of the week that is also a day of the month")
	}
	cron = strings.ReplaceAll(strings.Join([]string{minute, hour, dayOfMonth, month, weekday}, " "), "..", "-")
	if _, err := cronspec.Parse(cron, zone); err != nil {
		return "", "", fmt.Errorf("is no schedule for cron (%s)", value)
	}
	return cron, zone, nil
}

// timerRules are for settings of a timer that become a single key.
var timerRules = rules{
	{name: "RandomizedDelaySec", key: "schedule.jitter", as: timeSpan},
	{name: "Persistent", key: "schedule.missed", as: whenSet("run", "")},
	{name: "AccuracySec|Unit|Description"}, // hinit is exact
	{name: "FixedRandomDelay", as: whenSet("", "the delay is another one each time; see schedule.jitter")},
	{name: "WakeSystem", as: whenSet("", "hinit wakes no machine")},
	{name: "On(Clock|Timezone)Change", as: whenSet("", "a task runs at its times only")},
}

// timer makes the service that a timer starts a task with a schedule.
func (u *units) timer(n *unit) {
	i := slices.IndexFunc(u.list, func(other *unit) bool { return other.service != nil && other.name+".service" == n.activates() })
	if i < 0 {
		u.note(from{place: n.place}, "starts %s, which is not imported; the timer is left out", n.activates())
		return
	}
	s := u.list[i].service
	s.set("once", "")
	if s.text("restart.policy") == "never" {
		s.set("restart.policy", "")
	}
	for _, k := range n.keys {
		var err error
		cron, zone := "", ""
		switch k.name {
		case "OnCalendar":
			cron, zone, err = calendar(k.value)
		case "OnUnitActiveSec", "OnUnitInactiveSec":
			if cron, err = timeSpan(k.value); err == nil {
				cron = "@every " + cron
			}
		case "OnBootSec", "OnStartupSec", "OnActiveSec":
			s.take("once", k.place, "boot")
			if strings.Trim(k.value, "0s") != "" {
				u.note(k.from, "it runs at the boot, and not later (%s)", k.value)
			}
		default:
			u.apply(slices.Concat(timerRules, unitRules), s, k)
		}
		switch {
		case err != nil:
			u.note(k.from, "%v", err)
		case cron != "" && s.text("schedule.cron") != "":
			u.note(k.from, "a task has one schedule; write a second task for %s", k.value)
		case cron != "":
			s.take("schedule.cron", k.place, cron)
			s.set("schedule.timezone", zone)
		}
	}
	if s.text("schedule.cron") == "" {
		s.drop("schedule")
		if s.text("once") == "" {
			s.set("once", "manual")
			u.note(from{place: n.place}, "has no time that hinit could take over; hinit run-once %s runs it", s.name)
		}
	}
}
