package show

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"hinit/client"
)

// SignalName returns the name of a signal.
func SignalName(n int) string {
	if name := unix.SignalName(syscall.Signal(n)); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", n)
}

// FormatDuration formats a duration with one or two units: 3.2s, 4m10s, 2h5m, 3d4h.
func FormatDuration(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 10*time.Second:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", d.Seconds()), ".0") + "s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}

// FormatSeconds is Duration for a number of seconds.
func FormatSeconds(s float64) string { return FormatDuration(time.Duration(s * float64(time.Second))) }

// AuthorText says who gave an order: "uid 0 (hinit, exec)".
func AuthorText(by *client.Author) string {
	if by.Program == "" {
		return fmt.Sprintf("uid %d (%s)", by.UID, by.Origin)
	}
	return EscapeLine(fmt.Sprintf("uid %d (%s, %s)", by.UID, by.Program, by.Origin))
}

// FormatNumber formats a number for a table, with "-" for 0.
func FormatNumber(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

// FormatThousands formats a number with commas: "12,000".
func FormatThousands(n int) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// BootTimeline describes the boot in one line: "0.153s (home 0ms, ...; meanwhile control 1ms)". The first number is the sum of
// the steps before "meanwhile". It leaves out steps marked "beside it", because they ran at the same time as the step before.
func BootTimeline(steps []client.BootStep) string {
	var parts, meanwhile []string
	shown := 0
	for i := 0; i < len(steps); {
		if steps[i].Parallel { // a parallel step may begin before the first step of the boot
			meanwhile = append(meanwhile, stepText(steps[i], milliseconds(steps[i].Seconds)))
			i++
			continue
		}
		end := i + 1
		for end < len(steps) && steps[end].Parallel {
			end++
		}
		together := slices.Clone(steps[i:end])
		slices.SortStableFunc(together, func(a, b client.BootStep) int { return cmp.Compare(b.Seconds, a.Seconds) })
		took := milliseconds(BootSeconds(steps[:end])) - shown
		shown += took
		parts = append(parts, stepText(together[0], took))
		for _, s := range together[1:] {
			parts = append(parts, stepText(s, min(milliseconds(s.Seconds), took))+" beside it")
		}
		i = end
	}
	text := strings.Join(parts, ", ")
	if len(meanwhile) > 0 {
		text += "; meanwhile " + strings.Join(meanwhile, ", ")
	}
	return fmt.Sprintf("%d.%03ds (%s)", shown/1000, shown%1000, text)
}

func milliseconds(seconds float64) int { return int(math.Round(seconds * 1000)) }

func stepText(s client.BootStep, ms int) string {
	name, failed := s.Name, ""
	if s.Skipped {
		name += " unchanged"
	}
	if s.Error != "" {
		failed = " FAILED"
	}
	return fmt.Sprintf("%s %dms%s", name, ms, failed)
}

// BootSeconds returns the duration of a boot. Of steps that ran at the same time, only the longest counts. Steps that began
// before the first step in the list don't count, because they ran during the whole boot.
func BootSeconds(steps []client.BootStep) (total float64) {
	longest := math.Inf(1)
	for _, s := range steps {
		if !s.Parallel {
			longest = 0
		}
		total += max(0, s.Seconds-longest)
		longest = max(longest, s.Seconds)
	}
	return total
}

// HookText describes the boot hook that is running: ": hook 1 of 2 (update.sh), 3s". If no hook is running, it returns "".
func HookText(h *client.BootHook) string {
	if h == nil {
		return ""
	}
	return fmt.Sprintf(": hook %d of %d (%s), %s", h.Number, h.Total, EscapeLine(h.Name), FormatSeconds(h.Seconds))
}

// LastExitText says how and when a service last ended: "code 1 (crash), 3.2s ago".
func LastExitText(x *client.Exit) string { return LastExitTextAt(x, time.Now()) }

// LastExitTextAt formats like [LastExitText] with now as the present time. The text is not escaped.
func LastExitTextAt(x *client.Exit, now time.Time) string {
	if x == nil {
		return "-"
	}
	ago := FormatDuration(now.Sub(x.EndedAt)) + " ago"
	switch x.Cause {
	case "spawn":
		line, _, _ := strings.Cut(x.Error, "\n")
		return line + ", " + ago
	case "health":
		return "unhealthy, " + ago + ": " + x.Error
	}
	return ExitText(x) + ", " + ago
}

// ExitText says how a run ended: "code 1 (crash)". The text is not escaped.
func ExitText(x *client.Exit) string {
	switch {
	case x.Signal != nil:
		return fmt.Sprintf("%s (%s)", SignalName(*x.Signal), x.Cause)
	case x.Code != nil:
		return fmt.Sprintf("code %d (%s)", *x.Code, x.Cause)
	}
	return x.Cause
}

// RunEndText describes in a sentence how a run ended: "exited with code 1 after 3.2s (crash)".
func RunEndText(x *client.Exit) (how string) {
	switch {
	case x.Cause == "spawn":
		return x.Error
	case x.Signal != nil:
		how = "ended by " + SignalName(*x.Signal)
	case x.Code != nil && x.Cause == "health":
		how = fmt.Sprintf("unhealthy (%s), exited with code %d", x.Error, *x.Code)
	case x.Code != nil:
		how = fmt.Sprintf("exited with code %d", *x.Code)
	default:
		return x.Cause
	}
	return fmt.Sprintf("%s after %s (%s)", how, FormatSeconds(x.UptimeSeconds), x.Cause)
}

// TaskResultText describes the last run of a task, as `hinit start` prints it.
func TaskResultText(s client.Service) string {
	x := s.LastExit
	if x == nil {
		return EscapeLine(s.Name) + " has not run"
	}
	after := ", after " + FormatSeconds(x.UptimeSeconds)
	switch {
	case x.Cause == "spawn":
		return fmt.Sprintf("%s was not started: %s", EscapeLine(s.Name), EscapeLine(x.Error))
	case x.Signal != nil:
		return fmt.Sprintf("%s has ended: %s (%s)%s", EscapeLine(s.Name), SignalName(*x.Signal), x.Cause, after)
	case x.Code != nil:
		return fmt.Sprintf("%s has ended: exit %d (%s)%s", EscapeLine(s.Name), *x.Code, x.Cause, after)
	}
	return fmt.Sprintf("%s has ended (%s)%s", EscapeLine(s.Name), x.Cause, after)
}

// NoWaitText is the output of a successful command with --no-wait. It calls a service "starting" that is up and not ready yet.
func NoWaitText(s client.Service) string {
	if fresh := !s.ReportsReadiness && s.UptimeSeconds < time.Second.Seconds(); s.State == client.StateUp && s.Want == client.WantUp && (fresh || !s.Ready) {
		s.State = client.StateStarting
	}
	return CommandResultText(s)
}

// CommandResultText is the output of a successful `hinit start`, stop or restart.
func CommandResultText(s client.Service) string {
	if s.PID != 0 {
		return fmt.Sprintf("%s is %s (pid %d)", EscapeLine(s.Name), s.State, s.PID)
	}
	return fmt.Sprintf("%s is %s", EscapeLine(s.Name), s.State)
}

// writeList writes a title and a line for each item, or nothing without items.
func writeList[T any](w *wrappedText, title string, items []T, line func(*T) string) {
	for i := range items {
		if i == 0 {
			w.writeLine(EscapeLine(title) + ":")
		}
		w.writeWrapped("    ", EscapeLine(line(&items[i])))
	}
}

// IsolationText describes how a service is isolated and which parts are in force. For a service without isolation it returns "".
func IsolationText(s *client.Service) string {
	switch i := s.Isolation; {
	case i == nil:
		return ""
	case s.PID == 0:
		return i.Mode + " (it does not run)"
	case len(i.Restrictions) == 0:
		return i.Mode + ", NOT IN FORCE: its process began without it; to apply it: hinit restart " + s.Name
	default:
		return i.Mode + " (" + strings.Join(i.Restrictions, ", ") + ")"
	}
}

// LimitsText lists the limits of a service that need a control group, and what enforces each limit. Without such limits it
// returns "".
func LimitsText(s *client.Service) string {
	words := make([]string, len(s.Limits))
	for i, l := range s.Limits {
		words[i] = l.Key + " " + l.Value + " (" + limitMechanisms[l.EnforcedBy] + ")"
	}
	return strings.Join(words, ", ")
}

var limitMechanisms = map[string]string{
	client.LimitedByGroup: "by its control group", client.LimitedByHinit: "measured by hinit", client.LimitedByNice: "as a nice value",
	client.LimitedByUser: "counted for its user", client.LimitedFromNextStart: "from its next start", client.LimitedByNothing: "NOT IN FORCE",
}

// SettingText formats a setting as key and value. The text is not escaped.
func SettingText(e *client.ConfigEntry) string {
	text := fmt.Sprint(e.Value)
	if _, plain := e.Value.(string); !plain {
		if data, err := json.Marshal(e.Value); err == nil {
			text = string(data)
		}
	}
	return e.Key + " " + text
}

// CheckText describes the result of a check. The text is not escaped, and may contain any characters of the check's answer.
func CheckText(c *client.Check) string {
	text := "is " + cmp.Or(map[string]string{client.CheckOnHold: "on hold"}[c.State], c.State)
	if !c.Since.IsZero() && c.State != client.CheckOnHold {
		text += " since " + FormatDuration(max(time.Since(c.Since), 0))
	}
	if c.Failures > 1 {
		text += fmt.Sprintf(", %d bad answers in a row", c.Failures)
	}
	if c.Answer != "" {
		text += ": " + c.Answer
	}
	return text
}

const (
	// maxNameWidth is the widest name in a table, in columns.
	maxNameWidth = 40
	// maxCellWidth is the widest cell with words, in columns.
	maxCellWidth = 120
	// maxCombiningMarks is the maximum number of combining marks on one letter. No language needs more, and a pile of marks would
	// cover other lines.
	maxCombiningMarks = 2
	// invisibleLetters are invisible characters that Unicode counts as letters or symbols.
	invisibleLetters = "\u115f\u1160\u2800\u3164\uffa0"
)

// EscapeLine makes a text of the agent safe to print on one line of a terminal or a log. It escapes characters that are
// invisible, move the cursor, change the direction of writing or pile up on others. It uses the escapes of Go: \n, \x1b, \u202e,
// and \xff for invalid UTF-8.
func EscapeLine(text string) string {
	if needsNoEscape(text) {
		return text
	}
	var b strings.Builder
	writeEscaped(&b, text)
	return b.String()
}

// EscapeText escapes like [EscapeLine], but keeps several lines.
func EscapeText(text string) string {
	if needsNoEscape(strings.ReplaceAll(text, "\n", "")) {
		return text
	}
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = EscapeLine(lines[i])
	}
	return strings.Join(lines, "\n")
}

// EscapeName escapes a name for a table like [EscapeLine], and cuts it to 40 columns.
func EscapeName(name string) string { return shorten(EscapeLine(name), maxNameWidth) }

func needsNoEscape(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
}

func writeEscaped(b *strings.Builder, text string) {
	b.Grow(len(text) + 16)
	marks := maxCombiningMarks // number of combining marks in a row; maxCombiningMarks at the start, because a mark there would change the text before it
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		mark := unicode.Is(unicode.M, r)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(b, `\x%02x`, text[0])
			marks = maxCombiningMarks
		case mark && marks >= maxCombiningMarks, !strconv.IsPrint(r), strings.ContainsRune(invisibleLetters, r):
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
			marks = maxCombiningMarks
		case mark:
			b.WriteString(text[:n])
			marks++
		default:
			b.WriteString(text[:n])
			marks = 0
		}
		text = text[n:]
	}
}

func textColumns(text string) int {
	n := 0
	for _, r := range text {
		n += runeColumns(r)
	}
	return n
}

func runeColumns(r rune) int {
	switch {
	case r < 0x300:
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	case r >= 0x1100 && r <= 0x115f, r >= 0x2e80 && r <= 0x303e, r >= 0x3041 && r <= 0xa4cf, r >= 0xac00 && r <= 0xd7a3, r >= 0xf900 && r <= 0xfaff,
		r >= 0xfe30 && r <= 0xfe6f, r >= 0xff00 && r <= 0xff60, r >= 0xffe0 && r <= 0xffe6, r >= 0x1f300 && r <= 0x1faff, r >= 0x20000 && r <= 0x3fffd:
		return 2
	}
	return 1
}

func shorten(text string, limit int) string {
	if len(text) <= limit || textColumns(text) <= limit {
		return text
	}
	n := 0
	for i, r := range text {
		n += runeColumns(r)
		if n > limit-1 {
			return text[:i] + "…"
		}
	}
	return text
}
