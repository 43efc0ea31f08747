package imports

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/samber/lo"
	"go.yaml.in/yaml/v3"

	"hinit/internal/cmdline"
	"hinit/internal/cronspec"
)

// commandSettings lists the settings whose values are commands.
var commandSettings = []string{"ExecStart", "ExecStartPre", "ExecStartPost", "ExecStop", "ExecReload"}

// unitVariable matches text that systemd replaces even inside a word: a variable ${NAME}, and $$, an escaped dollar.
var unitVariable = regexp.MustCompile(`\$\$|\$\{[A-Za-z_][A-Za-z0-9_]*\}`)

var separateVariable = regexp.MustCompile(`^\$[A-Za-z_][A-Za-z0-9_]*$`)

// killCommand matches a kill command that sends a signal to the main process of the unit.
var killCommand = regexp.MustCompile(`^\S*kill\s+(?:(?:-s\s*|--signal[ =]|-)(\w+)\s+)?\$\{?MAINPID\}?$`)

// unitCommand is one command of a unit.
type unitCommand struct {
	words                      []string
	mayFail, replacesVariables bool // mayFail ignores a failure of the command; with replacesVariables, systemd replaces variables in the command
}

// commandsOf parses the commands in a setting such as ExecStart=. ";" separates commands. Prefixes such as "-" apply to all
// commands of the setting.
func (u *unitImport) commandsOf(n *unit, k setting) (list []unitCommand) {
	line := strings.TrimLeft(k.value, "-@:+!|")
	prefixes := k.value[:len(k.value)-len(line)]
	words, err := unitWords(line)
	if err != nil {
		u.addNote(k.sourceRef, "cannot be taken apart: %v", err)
	}
	if strings.Contains(prefixes, "@") && len(words) > 1 {
		u.addNote(k.sourceRef, "hinit passes the program's own name as its first argument, not %s", words[1])
		words = append(words[:1], words[2:]...)
	}
	if user := n.lastValue("User"); strings.ContainsAny(prefixes, "+!") && user != "" {
		u.addNote(k.sourceRef, "runs as %s here too; let root do it in a task of its own, which this service needs", user)
	}
	begin := 0
	for i := range len(words) + 1 {
		if i < len(words) && words[i] != ";" {
			words[i] = strings.ReplaceAll(words[i], `\;`, ";")
			continue
		}
		if i > begin {
			list = append(list, unitCommand{words[begin:i], strings.Contains(prefixes, "-"), !strings.Contains(prefixes, ":")})
		}
		begin = i + 1
	}
	return list
}

// shellText returns the command as text for sh. variables reports whether the text has variables that sh must replace.
func (c unitCommand) shellText() (text string, variables bool) {
	words := make([]string, len(c.words))
	for i, word := range c.words {
		switch {
		case !c.replacesVariables:
			words[i] = cmdline.ShellQuote(word)
		case separateVariable.MatchString(word):
			words[i], variables = word, true
		default:
			words[i] = shellQuote(word, unitVariable)
			variables = variables || strings.Contains(strings.ReplaceAll(word, "$$", ""), "${")
		}
	}
	return strings.Join(words, " "), variables
}

// sequenceOf joins several commands into one command, which stops at the first failure. The last command replaces the shell by
// exec, unless its failure is ignored.
func sequenceOf(list []unitCommand, lastMayFail bool) []string {
	var parts []string
	simple := len(list) == 1
	for i, c := range list {
		text, variables := c.shellText()
		last := i == len(list)-1
		switch {
		case c.mayFail && (!last || lastMayFail):
			text, simple = "{ "+text+" || true; }", false
		case last:
			text = "exec " + text
		}
		parts = append(parts, text)
		simple = simple && !variables
	}
	if !simple {
		return []string{"sh", "-c", strings.Join(parts, " && ")}
	}
	if !list[0].replacesVariables {
		return list[0].words
	}
	return lo.Map(list[0].words, func(word string, _ int) string { return strings.ReplaceAll(word, "$$", "$") })
}

// importCommands imports the commands that start, stop and reload a unit, and the commands that run after its start.
func (u *unitImport) importCommands(n *unit) {
	s, by := n.service, make(map[string][]unitCommand)
	for _, k := range n.keys {
		kill := killCommand.FindStringSubmatch(strings.TrimLeft(k.value, "-+!:"))
		switch {
		case k.name == "ExecStop" && kill != nil:
			u.apply(rules{{name: ".*", key: "stop.signal", convertText: signalName}}, s, setting{sourceRef: k.sourceRef, value: cmp.Or(kill[1], "TERM")})
		case k.name == "ExecReload" && kill != nil:
			signal, err := signalName(cmp.Or(kill[1], "TERM"))
			if err != nil {
				u.addNote(k.sourceRef, "hinit reload sends no %s", kill[1])
			}
			s.setFrom("reload_signal", k.place, signal)
		case k.name == "ExecReload":
			u.addNote(k.sourceRef, "hinit reload sends reload_signal and runs no command (%s)", oneLine(k.value))
		case k.name == "ExecStop" && strings.Contains(k.value, "MAINPID"):
			u.addNote(k.sourceRef, "stop_command knows no process id; see stop.signal (%s)", oneLine(k.value))
		case slices.Contains(commandSettings, k.name):
			by[k.name] = append(by[k.name], u.commandsOf(n, k)...)
		}
		if key, is := map[string]string{"ExecStart": "command", "ExecStop": "stop_command"}[k.name]; is {
			s.recordPlace(key, k.place)
		}
	}
	if start := by["ExecStart"]; len(start) > 0 {
		s.set("command", sequenceOf(append(by["ExecStartPre"], start...), s.isTask()))
	}
	if stop := by["ExecStop"]; len(stop) > 0 {
		s.set("stop_command", sequenceOf(stop, true))
	}
	if post := by["ExecStartPost"]; len(post) > 0 && !s.isTask() {
		after := u.addService(n.place, s.name+"-post")
		after.comment = "Runs after each start of " + s.name + "."
		for _, key := range []string{"user", "cwd", "env", "env_file"} {
			after.set(key, s.values[key])
		}
		after.set("command", sequenceOf(post, true))
		after.set("once", "manual")
		startAfterEvent(s, "ready", after, n.place)
	}
}

// startAfterEvent adds an action to s: after each event, start the service other, or run it once if it is a task.
func startAfterEvent(s *service, event string, other *service, at place) {
	order := lo.Ternary(other.isTask(), []string{"hinit", "run-once", "--no-wait", other.name}, []string{"hinit", "start", other.name})
	on, _ := s.values["on"].(*yaml.Node)
	if on == nil {
		on = &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle}
		s.setFrom("on", at, on)
	}
	words := valueNode(&order, false, order)
	exec := &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle, Content: []*yaml.Node{textNode("exec"), words}}
	on.Content = append(on.Content, textNode(event), exec)
}

// unitWords splits a line into words by the rules of systemd.syntax(7), which has quotes and C escapes.
func unitWords(line string) ([]string, error) { return splitWords(line, unitEscape) }

func unitEscape(rest string, quote rune) (text string, length int) {
	if strings.HasPrefix(rest, `\s`) {
		return " ", 2
	}
	if made, _, tail, err := strconv.UnquoteChar(rest, '"'); err == nil {
		return string(made), len(rest) - len(tail)
	}
	if len(rest) > 1 && rest[1] == '\'' {
		return "'", 2
	}
	return rest[:min(2, len(rest))], min(2, len(rest)) // \; and escapes that systemd doesn't know stay unchanged
}

// timeSpanPart matches a number with its unit. A number without a unit means seconds.
var timeSpanPart = regexp.MustCompile(`^(\d+(?:\.\d+)?)\s*([a-zA-Zµ]*)\s*`)

const day = 24 * time.Hour

// timeSpanUnits are the time units of systemd.time(7).
var timeSpanUnits = map[string]time.Duration{
	"usec": time.Microsecond, "us": time.Microsecond, "µs": time.Microsecond, "msec": time.Millisecond, "ms": time.Millisecond,
	"seconds": time.Second, "second": time.Second, "sec": time.Second, "s": time.Second, "": time.Second,
	"minutes": time.Minute, "minute": time.Minute, "min": time.Minute, "m": time.Minute,
	"hours": time.Hour, "hour": time.Hour, "hr": time.Hour, "h": time.Hour, "days": day, "day": day, "d": day,
	"weeks": 7 * day, "week": 7 * day, "w": 7 * day, "months": 2629800 * time.Second, "month": 2629800 * time.Second, "M": 2629800 * time.Second,
	"years": 31557600 * time.Second, "year": 31557600 * time.Second, "y": 31557600 * time.Second,
}

// parseTimeSpan converts a time span of systemd, such as "5min 20s", to a duration for hinit.yaml.
func parseTimeSpan(value string) (string, error) {
	sum, rest := time.Duration(0), value
	for rest != "" {
		part := timeSpanPart.FindStringSubmatch(rest)
		if part == nil {
			break
		}
		number, err := strconv.ParseFloat(part[1], 64)
		unit, known := timeSpanUnits[part[2]]
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

// calendarNames maps the named calendar expressions of systemd.time(7) to their full forms.
var calendarNames = map[string]string{
	"minutely": "*:*", "hourly": "*:00", "daily": "*-*-*", "weekly": "Mon", "monthly": "*-*-01", "yearly": "*-01-01", "annually": "*-01-01",
	"quarterly": "*-01,04,07,10-01", "semiannually": "*-01,07-01",
}

// dayName matches the name of a day; its group is the first three letters.
var dayName = regexp.MustCompile(`([^,.]{3})[^,.]*`)

// cronOfCalendar converts a calendar expression of OnCalendar= to a cron schedule and its time zone. If cron can't express it, it
// returns an error.
func cronOfCalendar(value string) (cron, zone string, err error) {
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
			weekday = strings.ToUpper(strings.ReplaceAll(dayName.ReplaceAllString(word, "$1"), "..", "-"))
		}
	}
	cron = strings.ReplaceAll(strings.Join([]string{minute, hour, dayOfMonth, month, weekday}, " "), "..", "-")
	if _, err := cronspec.Parse(cron, zone); err != nil {
		return "", "", fmt.Errorf("is no schedule for cron (%s)", value)
	}
	return cron, zone, nil
}

// timerRules are the rules for the settings of a timer that can be imported one by one.
var timerRules = parseRules("systemd timer")

// importTimer imports a timer. The service that it starts becomes a task with a schedule.
func (u *unitImport) importTimer(n *unit) {
	i := slices.IndexFunc(u.units, func(other *unit) bool { return other.service != nil && other.name+".service" == n.activatedUnit() })
	if i < 0 {
		u.addNote(sourceRef{place: n.place}, "starts %s, which is not imported; the timer is left out", n.activatedUnit())
		return
	}
	s := u.units[i].service
	s.set("once", "")
	if s.text("restart.policy") == "never" {
		s.set("restart.policy", "")
	}
	for _, k := range n.keys {
		var err error
		cron, zone := "", ""
		switch k.name {
		case "OnCalendar":
			cron, zone, err = cronOfCalendar(k.value)
		case "OnUnitActiveSec", "OnUnitInactiveSec":
			if cron, err = parseTimeSpan(k.value); err == nil {
				cron = "@every " + cron
			}
		case "OnBootSec", "OnStartupSec", "OnActiveSec":
			s.setFrom("once", k.place, "boot")
			if strings.Trim(k.value, "0s") != "" {
				u.addNote(k.sourceRef, "it runs at the boot, and not later (%s)", k.value)
			}
		default:
			u.apply(slices.Concat(timerRules, unitRules), s, k)
		}
		switch {
		case err != nil:
			u.addNote(k.sourceRef, "%v", err)
		case cron != "" && s.text("schedule.cron") != "":
			u.addNote(k.sourceRef, "a task has one schedule; write a second task for %s", k.value)
		case cron != "":
			s.setFrom("schedule.cron", k.place, cron)
			s.set("schedule.timezone", zone)
		}
	}
	if s.text("schedule.cron") == "" {
		s.drop("schedule")
		if s.text("once") == "" {
			s.set("once", "manual")
			u.addNote(sourceRef{place: n.place}, "has no time that hinit could take over; hinit run-once %s runs it", s.name)
		}
	}
}
