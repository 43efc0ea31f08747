package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"hinit/internal/testkit"
)

// makeTestModule creates a module whose packages end in every possible way.
func makeTestModule(t *testing.T) {
	testkit.SkipIfShort(t)
	t.Helper()
	dir := t.TempDir()
	for name, body := range map[string]string{
		"good": `func TestA(t *testing.T) { t.Log("not to be seen"); t.Run("one", func(t *testing.T) {}) }
func TestB(t *testing.T) { t.Skip("needs a moon") }
func TestC(t *testing.T) { t.Run("sub", func(t *testing.T) { t.Skip("needs a moon") }); t.Run("other", func(t *testing.T) { t.SkipNow() }) }`,
		"wrong":    `func TestD(t *testing.T) { t.Run("x", func(t *testing.T) { t.Error("it is wrong") }) }`,
		"panics":   `func TestE(t *testing.T) { t.Log("just before"); var m map[string]int; m["x"] = 1 }`,
		"dies":     `func TestF(t *testing.T) { os.Exit(3) }`,
		"broken":   `func TestG(t *testing.T) { undefined() }`,
		"slow":     `func TestH(t *testing.T) { f, _ := os.Create("begun"); f.Close(); time.Sleep(time.Hour) }`,
		"slower":   `func TestK(t *testing.T) { f, _ := os.Create("begun"); f.Close(); time.Sleep(time.Hour) }`,
		"unsteady": `func TestI(t *testing.T) { t.Run("a b", func(t *testing.T) { if os.Mkdir("seen", 0o700) == nil { t.Error("the first time") } }) }`,
		"serious":  `func TestJ(t *testing.T) { if os.Mkdir("seen", 0o700) == nil { t.Errorf("serious: coder runs on %s and on %s", "a", "b") } }`,
		"empty":    ``,
		"left":     `func TestL(t *testing.T) { meet("left", "right") }`,
		"right":    `func TestR(t *testing.T) { meet("right", "left") }`,
	} {
		text := "package x\n\nimport (\n\t\"os\"\n\t\"testing\"\n\t\"time\"\n)\n\nvar _, _, _ = os.Exit, testing.Short, time.Now\n\n" + body + "\n" +
			"func meet(me, other string) {\n\tos.WriteFile(\"../\"+me+\".begun\", nil, 0o600)\n\tfor {\n\t\tif _, err := os.Stat(\"../\" + other + \".begun\"); err == nil {\n\t\t\treturn\n\t\t}\n\t\ttime.Sleep(time.Millisecond)\n\t}\n}\n"
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "x_test.go"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module m\n\ngo 1.26\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
}

// runSummary runs the program, and returns its whole output and the summary.
func runSummary(t *testing.T, code int, calls ...string) (all, end string) {
	t.Helper()
	var out bytes.Buffer
	if got := (&runner{out: &out, again: 1}).run(calls, make(chan os.Signal)); got != code {
		t.Errorf("exit code %d, want %d:\n%s", got, code, out.String())
	}
	all = out.String()
	return all, regexp.MustCompile(` in \d+m?\d*s`).ReplaceAllString(all[strings.LastIndex(all, "\n\n")+2:], "")
}

func TestAllIsWell(t *testing.T) {
	makeTestModule(t)
	all, end := runSummary(t, 0, "./good ./empty", "-run TestA ./good")
	want := `2 packages: 5 tests passed, 3 were skipped, 0 failed
skipped 2: needs a moon (m/good TestB, m/good TestC/sub)
skipped 1: no reason given (m/good TestC/other)
`
	if end != want || strings.Contains(all, "not to be seen") {
		t.Errorf("got\n%s\nwant\n%s", all, want)
	}
}

func TestWhatFailsIsShownAndCounted(t *testing.T) {
	makeTestModule(t)
	all, end := runSummary(t, 1, "-p 1 ./broken ./dies ./good ./panics ./wrong", "./nowhere", "-nonsense", "./good")
	want := `8 packages: 6 tests passed, 6 were skipped, 7 failed
skipped 4: needs a moon (m/good TestB, m/good TestC/sub, m/good TestB, ...)
skipped 2: no reason given (m/good TestC/other, m/good TestC/other)
failed: m/broken
failed: m/dies TestF (did not end)
failed: m/panics TestE
failed: m/wrong TestD/x
failed: m/wrong TestD
failed: ./nowhere
failed: .
`
	if end != want {
		t.Errorf("got\n%s\nwant\n%s", end, want)
	}
	for _, text := range []string{"it is wrong", "assignment to entry in nil map", "just before", "undefined: undefined", "directory not found"} {
		if n := strings.Count(all, text); n != 1 {
			t.Errorf("%q is there %d times in\n%s", text, n, all)
		}
	}
}

func TestWhatFailsOnceIsRunAgainAloneAndNamed(t *testing.T) {
	makeTestModule(t)
	all, end := runSummary(t, 0, "-p 1 -run TestA|TestI ./good ./unsteady")
	want := `2 packages: 2 tests passed, 0 were skipped, 0 failed
unsteady: m/unsteady TestI/a_b (failed beside others, passed alone)
`
	if end != want || strings.Count(all, "the first time") != 1 {
		t.Errorf("got\n%s\nwant\n%s", all, want)
	}
	if err := os.Remove("unsteady/seen"); err != nil {
		t.Fatal(err)
	}
	if _, end = runSummary(t, 1, "-p 1 ./wrong ./unsteady"); strings.Contains(end, "unsteady: ") { // -again 1 does not repeat two failed tests.
		t.Errorf("got\n%s", end)
	}
	if _, end = runSummary(t, 1, "./wrong"); !strings.Contains(end, "2 failed\nfailed: m/wrong TestD/x\nfailed: m/wrong TestD\n") {
		t.Errorf("got\n%s", end)
	}
}

// TestABrokenPromiseIsNotRunAgain checks that a failure that breaks a promise counts at once. If the test were run
// again and passed, the summary would only call it unsteady.
func TestABrokenPromiseIsNotRunAgain(t *testing.T) {
	makeTestModule(t)
	all, end := runSummary(t, 1, "-p 1 ./serious")
	if end != "1 packages: 0 tests passed, 0 were skipped, 1 failed\nfailed: m/serious TestJ\n" || strings.Contains(all, "again, alone") {
		t.Errorf("got\n%s\n%s", all, end)
	}
}

// TestRowsRunBesideEachOther checks that rows with "beside" run at the same time. Each test waits
// for the other.
func TestRowsRunBesideEachOther(t *testing.T) {
	makeTestModule(t)
	if all, end := runSummary(t, 0, "./left", "./good", "beside", "./right", "-run TestA ./good"); end != `4 packages: 7 tests passed, 3 were skipped, 0 failed
skipped 2: needs a moon (m/good TestB, m/good TestC/sub)
skipped 1: no reason given (m/good TestC/other)
` {
		t.Errorf("got\n%s", all)
	}
}

// TestAnInterruptedRunIsSummedUp checks that the summary is printed after an interrupt. The signal goes to the program
// alone here; at a terminal, go test gets it too.
func TestAnInterruptedRunIsSummedUp(t *testing.T) {
	makeTestModule(t)
	var out bytes.Buffer
	signals, ended := make(chan os.Signal), make(chan int)
	go func() {
		ended <- (&runner{out: &out, again: 1}).run([]string{"./good", "./slow", "./good", "beside", "./slower"}, signals)
	}()
	testkit.Until(t, "the slow ones have begun", func() bool {
		_, err := os.Stat("slow/begun")
		_, err2 := os.Stat("slower/begun")
		return errors.Join(err, err2) == nil
	})
	signals <- syscall.SIGINT
	select {
	case code := <-ended:
		if code != 130 {
			t.Errorf("exit code %d", code)
		}
	case <-time.After(testkit.Patience):
		t.Fatal("it still runs")
	}
	text := out.String()
	if strings.Count(text, "ok   m/good") != 1 || !strings.Contains(text, "failed: m/slow TestH (did not end)\nfailed: m/slower TestK (did not end)\n") || !strings.HasSuffix(text, "interrupted: this is not all\n") {
		t.Errorf("got\n%s", text)
	}
}

func TestAFailedTestIsRunAloneWithTheFlagsOfItsCall(t *testing.T) {
	f := failure{test: test{"m/p", "TestX/a b"}, words: strings.Fields("-race -p 3 -run TestX ./... hinit hinit/internal/proc m/p")}
	if got, want := strings.Join(f.callAlone(), " "), "-race -p 3 -count=1 -run ^TestX$/^a b$ m/p"; got != want {
		t.Errorf("go test %s, want %s", got, want)
	}
}
