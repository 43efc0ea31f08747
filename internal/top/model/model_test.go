package model_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/top/model"
)

func shownNames(m *model.Model) string {
	var out []string
	for line := range strings.SplitSeq(frameText(m.Frame()), "\n") {
		for word := range strings.FieldsSeq(line) {
			if strings.HasPrefix(word, "gateway-") && !strings.Contains(line, "y/n") {
				out = append(out, strings.TrimPrefix(word, "gateway-"))
				break
			}
		}
	}
	return strings.Join(out, " ")
}

func threeServices() []client.Service {
	a, b, c := upService("a"), upService("b"), upService("c")
	a.Restarts, b.Restarts, c.Restarts = 1, 3, 2
	b.State, b.Want, b.PID = client.StateDown, client.WantDown, 0
	c.Problem = "its platform is deaf"
	return []client.Service{a, b, c}
}

func pressKeys(m *model.Model, keys ...string) (orders []model.Order) {
	for _, k := range keys {
		orders = append(orders, m.Key(k)...)
	}
	return orders
}

func orderTexts(orders []model.Order) string {
	words := make([]string, 0, len(orders))
	for _, o := range orders {
		words = append(words, strings.TrimSpace(fmt.Sprintf("%s %s %s", o.Verb, o.Name, o.Word)))
	}
	return "[{" + strings.Join(words, "} {") + "}]"
}

func TestTheTableIsSortedFilteredAndGrouped(t *testing.T) {
	for _, tt := range []struct {
		keys []string
		want string
	}{
		{nil, "c a b"},
		{[]string{">"}, "a b c"},
		{[]string{">", "i"}, "c b a"},
		{[]string{">", ">", ">", ">"}, "b c a"},
		{[]string{"<"}, "c a b"},
		{[]string{"/", "D", "e", "a", "f"}, "c"},
		{[]string{"/", "!", "d", "e", "a", "f"}, "a b"},
		{[]string{"/", "u", "p", "space", "-", "a"}, "a"},
		{[]string{"/", "n", "o", "n", "e"}, ""},
		{[]string{"/", "x", "backspace", "b"}, "b"},
		{[]string{"/", "x", "esc"}, "c a b"},
	} {
		m := newTestModel(100, 20, threeServices(), tt.keys...)
		got := shownNames(m)
		if got != tt.want {
			t.Errorf("%v: %q, want %q\n%s", tt.keys, got, tt.want, frameText(m.Frame()))
		}
	}
	if text := frameText(newTestModel(100, 20, threeServices(), "p").Frame()); !strings.Contains(text, "> ▾ profile c: 1 of 1 up, 1 in trouble\n  gateway-c") || !strings.Contains(text, "profile b: 0 of 1 up") {
		t.Errorf("in groups:\n%s", text)
	}
}

// The cursor must stay on its service while other services come, go and move. Before the user moves the cursor, it stays on the
// first row.
func TestTheCursorStaysWithItsService(t *testing.T) {
	m := newTestModel(100, 20, threeServices())
	if !strings.Contains(frameText(m.Frame()), "> gateway-c") {
		t.Errorf("at first:\n%s", frameText(m.Frame()))
	}
	m.Key("down")
	worse := upService("a")
	worse.State = client.StateFailed
	m.ApplyChange(0, client.StatusChange{Services: []client.Service{worse}}, noon)
	if text := frameText(m.Frame()); !strings.Contains(text, "> gateway-a") || shownNames(m) != "a c b" {
		t.Errorf("after a change:\n%s", text)
	}
	m.ApplyChange(0, client.StatusChange{IsComplete: true, Services: threeServices()[1:]}, noon)
	if text := frameText(m.Frame()); strings.Contains(text, "gateway-a") || !strings.Contains(text, "> gateway-c") {
		t.Errorf("after its end:\n%s", text)
	}
	m.ApplyChange(0, client.StatusChange{IsComplete: true, Services: []client.Service{}}, noon)
	if orders := pressKeys(m, "down", "up", "space", "d", "l", "r", "y", "p", "x", "y"); len(orders) != 0 {
		t.Errorf("orders for nothing: %v", orders)
	}
}

func TestOrdersNeedAYes(t *testing.T) {
	m := newTestModel(100, 20, threeServices())
	for _, tt := range []struct {
		keys []string
		want string
	}{
		{[]string{"x"}, "[{}]"},
		{[]string{"n"}, "[{}]"},
		{[]string{"x", "y"}, "[{stop gateway-c}]"},
		{[]string{"s", "enter"}, "[{start gateway-c}]"},
		{[]string{"*", "r", "y"}, "[{restart gateway-c} {restart gateway-a} {restart gateway-b}]"},
		{[]string{"r", "q"}, "[{}]"},
		{[]string{"space", "/", "b", "enter", "s", "y"}, "[{start gateway-c}]"},
	} {
		if got := orderTexts(pressKeys(m, tt.keys...)); got != tt.want {
			t.Errorf("%v: %s, want %s", tt.keys, got, tt.want)
		}
	}
	if m.IsQuitting() {
		t.Error("a no has ended it")
	}
	if m.Paste('x'); len(pressKeys(m, "y")) != 0 {
		t.Error("what was pasted is an order")
	}
}

func TestARolloutGoesOneByOne(t *testing.T) {
	m := newTestModel(100, 20, threeServices())
	done := func(name string, err error) string {
		return orderTexts(m.OrderEnded(model.Order{Verb: client.VerbRestart, ID: model.ID{Name: name}}, err))
	}
	last := func() string {
		lines := strings.Split(strings.TrimSuffix(frameText(m.Frame()), "\n"), "\n")
		return lines[len(lines)-1]
	}
	if got := orderTexts(pressKeys(m, "*", "R", "y")); got != "[{restart gateway-c}]" {
		t.Fatalf("it begins with %s", got)
	}
	if got := orderTexts(pressKeys(m, "r", "y")); got != "[{}]" || !strings.Contains(last(), "now gateway-c") {
		t.Errorf("another order while it runs: %s, %q", got, last())
	}
	if got := done("gateway-c", nil); got != "[{restart gateway-a}]" {
		t.Errorf("then %s", got)
	}
	if got := done("gateway-a", errors.New("it died\nat once")); got != "[{}]" || last() != "rollout stopped at gateway-a, 1 of 3 are done: it died; at once" {
		t.Errorf("after a failure: %s, %q", got, last())
	}
	pressKeys(m, "*", "R", "y", "esc")
	if got := done("gateway-c", nil); got != "[{}]" || last() != "rollout: 1 of 3 are restarted and ready" {
		t.Errorf("after esc: %s, %q", got, last())
	}
}

func TestTheOrderForAGroupIsForItsServices(t *testing.T) {
	services := threeServices()
	services[0].Group, services[2].Group = "payments", "payments"
	m := newTestModel(100, 20, services, "p")
	text := frameText(m.Frame())
	if !strings.Contains(text, "> ▾ @payments: 2 of 2 up, 1 in trouble\n  gateway-c") || !strings.Contains(text, "▾ of no group: 0 of 1 up\n  gateway-b") {
		t.Errorf("the groups:\n%s", text)
	}
	if got := orderTexts(pressKeys(m, "r", "y")); got != "[{restart gateway-c} {restart gateway-a}]" {
		t.Errorf("an order: %s", got)
	}
	pressKeys(m, "down", "f")
	if text = frameText(m.Frame()); !strings.Contains(text, "> ▸ @payments: 2 of 2 up, 1 in trouble\n  ▾ of no group") || shownNames(m) != "b" {
		t.Errorf("folded:\n%s", text)
	}
	if got := orderTexts(pressKeys(m, "x", "y")); got != "[{stop gateway-c} {stop gateway-a}]" {
		t.Errorf("an order for a folded group: %s", got)
	}
	if pressKeys(m, "enter"); shownNames(m) != "c a b" {
		t.Errorf("shown again:\n%s", frameText(m.Frame()))
	}
	if pressKeys(m, append([]string{"p", "p", "/"}, strings.Split("@payments", "")...)...); shownNames(m) != "c a" {
		t.Errorf("filtered by a group:\n%s", frameText(m.Frame()))
	}
}

// The filter must take the same patterns as hinit restart, and @pay must not match the group payments.
func TestTheFilterTakesThePatternsOfTheCommandLine(t *testing.T) {
	services := threeServices()
	services[0].Group, services[2].Group = "pay", "payments"
	for word, want := range map[string]string{
		"gateway-[bc]": "c b", "?": "c a b", "@pay": "a", "@payments": "c", "@p": "", "@": "", "[": "", "!gateway-[ab]": "c", "!@pay": "c b", "gateway-* !*a": "c b",
		"pay": "c a", "GATEWAY-A": "a",
	} {
		keys := []string{"/"}
		for _, letter := range word {
			keys = append(keys, map[bool]string{true: "space", false: string(letter)}[letter == ' '])
		}
		if got := shownNames(newTestModel(100, 20, services, append(keys, "enter")...)); got != want {
			t.Errorf("%q finds %q, want %q", word, got, want)
		}
	}
}

func TestASignalIsAskedFor(t *testing.T) {
	m := newTestModel(100, 20, threeServices())
	if got := orderTexts(pressKeys(m, "S", "H", "U", "P", "enter")); got != "[{signal gateway-c HUP}]" {
		t.Errorf("%s", got)
	}
	for _, keys := range [][]string{{"S", "esc"}, {"S", "enter"}, {"S", "U", "backspace", "enter"}} {
		if got := orderTexts(pressKeys(m, keys...)); got != "[{}]" {
			t.Errorf("%v: %s", keys, got)
		}
	}
	if got := orderTexts(pressKeys(m, "!")); got != "[{shell gateway-c}]" {
		t.Errorf("a shell: %s", got)
	}
}

func TestALogHasALevelAndARunBefore(t *testing.T) {
	services := threeServices()
	services[2].LastExit = &client.Exit{Cause: "crash", EndedAt: noon.Add(-time.Hour), UptimeSeconds: 60}
	m := newTestModel(100, 24, services, "l")
	m.AddLogLines(m.DataNeeds().Log, []model.LogLine{{Text: "INFO: begins"}, {Text: "ERROR: it broke"}, {Text: "  at line 7"}, {Text: "WARNING: slow"}})
	for _, step := range []struct {
		key, shown string
	}{
		{"L", "INFO: begins|ERROR: it broke|  at line 7|WARNING: slow"},
		{"L", "ERROR: it broke|  at line 7|WARNING: slow"},
		{"L", "ERROR: it broke|  at line 7"},
		{"L", "INFO: begins|ERROR: it broke|  at line 7|WARNING: slow"},
	} {
		m.Key(step.key)
		if got := strings.ReplaceAll(strings.TrimSuffix(m.LogText(), "\n"), "\n", "|"); got != step.shown {
			t.Errorf("%q, want %q", got, step.shown)
		}
	}
	if got := orderTexts(pressKeys(m, "w", "enter")); got != "[{save gateway-c gateway-c.log}]" {
		t.Errorf("write: %s", got)
	}
	m.Key("b")
	w := m.DataNeeds().Log
	if w.From.Sub(noon) > -time.Hour-time.Minute || w.Until.Before(noon.Add(-time.Hour)) || !strings.Contains(frameText(m.Frame()), "log of gateway-c, the run before: crash") {
		t.Errorf("the run before is %v to %v\n%s", w.From, w.Until, frameText(m.Frame()))
	}
	if m.Key("b"); !m.DataNeeds().Log.From.IsZero() {
		t.Error("the newest lines don't come back")
	}
	if pressKeys(m, "down", "b"); !strings.Contains(frameText(m.Frame()), "no run of gateway-a has ended yet") {
		t.Errorf("without a run before:\n%s", frameText(m.Frame()))
	}
}

// The rows of a host that doesn't answer stay and count as unknown, and the rows of other hosts are updated.
func TestAHostThatDoesNotAnswerIsShown(t *testing.T) {
	m := newModelWithThreeHosts(100, 30)
	text := frameText(m.Frame())
	for _, part := range []string{"1 in trouble 1 ailing 5 unknown", "us-2: not answering since", "HOST", "us-2 gateway-agent40 ? up", "eu-1 gateway-agent17 ✗ crash-loop", "us-1 gateway-agent31 ! deaf"} {
		if !strings.Contains(text, part) {
			t.Errorf("there is no %q:\n%s", part, text)
		}
	}
	orders := pressKeys(m, "/", "u", "s", "-", "1", "enter", "x", "y")
	if len(orders) != 1 || orders[0].ID != (model.ID{Host: 1, Name: "gateway-agent31"}) {
		t.Errorf("an order goes to %v", orders)
	}
	pressKeys(m, "esc", "p", "p", "p")
	if text = frameText(m.Frame()); !strings.Contains(text, "▾ host us-2: 5 of 5 up, 5 unknown") {
		t.Errorf("by host:\n%s", text)
	}
}

// Every pane must show the keys to quit and for help, on 80 and on 40 columns.
func TestTheKeyThatQuitsIsShown(t *testing.T) {
	for _, width := range []int{40, 80} {
		for _, key := range []string{"esc", "d", "l", "e"} {
			lines := strings.Split(strings.TrimSuffix(frameText(newTestModel(width, 24, threeServices(), key).Frame()), "\n"), "\n")
			if last := lines[len(lines)-1]; !strings.Contains(last, "q quit") || !strings.Contains(last, "? help") {
				t.Errorf("at %d after %s: %q", width, key, last)
			}
		}
	}
}

func TestSilenceIsReported(t *testing.T) {
	m := newTestModel(100, 20, threeServices())
	m.Tick(noon.Add(model.MaxSilence))
	if text := frameText(m.Frame()); strings.Contains(text, "not answering") {
		t.Errorf("too early:\n%s", text)
	}
	m.Tick(noon.Add(model.MaxSilence + time.Second))
	if text := frameText(m.Frame()); !strings.Contains(text, "not answering since") || shownNames(m) != "c a b" {
		t.Errorf("after a silence:\n%s", text)
	}
	m.HostLost(0, "nobody listens", noon.Add(time.Minute))
	m.HostLost(0, "nobody listens", noon.Add(2*time.Minute))
	if text := frameText(m.Frame()); !strings.Contains(text, "(1m0s): nobody listens") {
		t.Errorf("after an error:\n%s", text)
	}
	m.ApplyChange(0, client.StatusChange{IsComplete: true, Services: threeServices()}, noon.Add(time.Hour))
	if text := frameText(m.Frame()); strings.Contains(text, "not answering") {
		t.Errorf("it is back:\n%s", text)
	}
}

func TestALogFollowsAndIsSearched(t *testing.T) {
	m := newTestModel(80, 24, threeServices(), "l")
	if w := m.DataNeeds(); w.Log.Name != "gateway-c" || w.Log.File != "/opt/data/logs/gateways/c/current" {
		t.Errorf("it wants %+v", w)
	}
	var lines []model.LogLine
	for i := range 100 {
		lines = append(lines, model.LogLine{Text: fmt.Sprintf("line %d \x1b[31mred\x1b[0m", i)})
	}
	m.AddLogLines(m.DataNeeds().Log, nil)
	m.AddLogLines(m.DataNeeds().Log, lines)
	if text := frameText(m.Frame()); !strings.Contains(text, "line 99 red") || strings.Contains(text, "line 50") {
		t.Errorf("the end:\n%s", text)
	}
	pressKeys(m, "tab", "/", "L", "i", "n", "e", "space", "1", "7", "enter")
	if text := frameText(m.Frame()); !strings.Contains(text, "line 17 red") {
		t.Errorf("searched:\n%s", text)
	}
	m.AddLogLines(m.DataNeeds().Log, []model.LogLine{{Text: "new"}}) // the visible lines must stay
	if text := frameText(m.Frame()); !strings.Contains(text, "line 17 red") || strings.Contains(text, "new") {
		t.Errorf("while lines come:\n%s", text)
	}
	m.Key("end")
	if text := frameText(m.Frame()); !strings.Contains(text, "new") {
		t.Errorf("it follows again:\n%s", text)
	}
}

// A frame must be ready quickly although a service writes long lines. It must not wrap and measure all lines of the log.
func TestLongLinesOfALogHoldUpNoFrame(t *testing.T) {
	m := newTestModel(80, 24, threeServices(), "l")
	lines := make([]model.LogLine, 100)
	for i := range lines {
		lines[i].Text = strings.Repeat("x界", 1000) + fmt.Sprint(" end of ", i)
	}
	m.AddLogLines(m.DataNeeds().Log, lines)
	if n := testing.AllocsPerRun(1, func() { m.Frame() }); n > 2000 {
		t.Errorf("a frame takes %.0f allocations", n)
	}
	if text := frameText(m.Frame()); !strings.Contains(text, "end of 99") {
		t.Errorf("the end:\n%s", text)
	}
	pressKeys(m, "tab", "/", "o", "f", "space", "7", "enter")
	if text := frameText(m.Frame()); !strings.Contains(text, "end of 79") {
		t.Errorf("searched:\n%s", text)
	}
}

func TestTheMouseChooses(t *testing.T) {
	m := newTestModel(100, 20, threeServices(), "l")
	m.Click(5, 3)
	if !strings.Contains(frameText(m.Frame()), "> gateway-a") {
		t.Errorf("a row:\n%s", frameText(m.Frame()))
	}
	m.Click(3, 1)
	if shownNames(m) != "a b c a" { // the last word is the title of the pane
		t.Errorf("a head: %s\n%s", shownNames(m), frameText(m.Frame()))
	}
	m.Wheel(3, 1)
	if !strings.Contains(frameText(m.Frame()), "> gateway-c") {
		t.Errorf("the wheel:\n%s", frameText(m.Frame()))
	}
	for y := -1; y < 25; y++ {
		for x := -1; x < 120; x += 7 {
			m.Click(x, y)
			m.Wheel(y, -1)
		}
	}
}

// With random keys, sizes and changes, the model must never panic, and each frame must have the size of the screen.
func TestAnyKeysOnAnyScreen(t *testing.T) {
	keys := []string{
		"up", "down", "pgup", "pgdown", "home", "end", "/", "esc", "enter", "tab", "space", "*", "a", "e", "l", "d", "p", "z", "t", "?", "n", "N",
		"<", ">", "i", "s", "x", "r", "R", "y", "S", "!", "f", "b", "L", "w", "backspace", "ctrl+u", "é", "left", "alt+x", "",
	}
	for seed := range uint64(8) {
		random := rand.New(rand.NewPCG(seed, 1))
		m := newModelWithThreeHosts(80, 24)
		var waiting []model.Order
		for step := range 300 {
			if random.IntN(10) == 0 {
				m.Resize(random.IntN(140), random.IntN(50))
			}
			switch random.IntN(12) {
			case 0:
				m.ApplyChange(random.IntN(3), client.StatusChange{IsComplete: true, Services: fiftyServices()[random.IntN(51):]}, noon)
			case 1:
				m.AddLogLines(m.DataNeeds().Log, []model.LogLine{{Text: strings.Repeat("x界", random.IntN(200))}})
			case 2:
				m.AddEvent(0, client.Event{Service: "gateway-agent17", ToState: "up"})
			case 3:
				if len(waiting) > 0 {
					waiting = append(waiting[1:], m.OrderEnded(waiting[0], nil)...)
				}
			default:
				waiting = append(waiting, m.Key(keys[random.IntN(len(keys))])...)
			}
			f := m.Frame()
			if len(f.Lines) != f.Height {
				t.Fatalf("seed %d, step %d: %d lines of %d", seed, step, len(f.Lines), f.Height)
			}
			_ = f.ANSI(m.Theme())
		}
	}
}
