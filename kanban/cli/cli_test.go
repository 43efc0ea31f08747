package cli

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"hinit/internal/cmdline"
	"hinit/kanban"
)

// testShell is a board with a user who types commands.
type testShell struct {
	*testing.T
	root          string
	env           map[string]string
	now           time.Time
	outIsTerminal bool
}

func newShell(t *testing.T) *testShell {
	t.Helper()
	s := &testShell{T: t, root: t.TempDir(), now: time.Now()}
	for _, name := range []string{"coder", "ops"} {
		if err := os.MkdirAll(filepath.Join(s.root, "profiles", name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s.env = map[string]string{"HERMES_HOME": s.root, "HOME": s.root, "HINIT_RUNTIME_DIR": filepath.Join(s.root, "nohinit"), "HERMES_BIN": "/bin/true"}
	return s
}

func (s *testShell) run(args ...string) (code int, out, errs string) {
	s.Helper()
	var stdout, stderr bytes.Buffer
	var environ []string
	for name, value := range s.env {
		environ = append(environ, name+"="+value)
	}
	t := &Terminal{
		OutIsTerminal: s.outIsTerminal, Out: &stdout, Err: &stderr, Env: func(name string) string { return s.env[name] }, Environ: environ, Now: func() time.Time { return s.now },
	}
	code = t.Main(args)
	return code, stdout.String(), stderr.String()
}

func (s *testShell) mustRun(args ...string) string {
	s.Helper()
	code, out, errs := s.run(args...)
	if code != cmdline.ExitDone {
		s.Fatalf("%q: exit code %d, %s", args, code, errs)
	}
	return out
}

// checkFails runs a command that must fail with the given code and text.
func (s *testShell) checkFails(code int, message string, args ...string) {
	s.Helper()
	got, out, errs := s.run(args...)
	if got != code || !strings.Contains(errs, message) {
		s.Errorf("%q: exit code %d, want %d; %q, want %q; printed %q", args, got, code, errs, message, out)
	}
	if strings.Count(errs, "\n") > 1 && code != cmdline.ExitUsage {
		s.Errorf("%q: the error has more than a line: %q", args, errs)
	}
}

// TestACommandPrintsAWarningOfTheBoard checks that the command prints a warning of the board to
// its error output.
func TestACommandPrintsAWarningOfTheBoard(t *testing.T) {
	s := newShell(t)
	if err := os.Mkdir(filepath.Join(s.root, "kanban.db.init.lock"), 0o755); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := s.run("create", "a"); code != cmdline.ExitDone || !strings.Contains(errs, `level=WARN msg="opening the board without its init lock"`) {
		t.Errorf("exit code %d: %q", code, errs)
	}
}

var idPattern = regexp.MustCompile(`t_[0-9a-f]{8}`)

func (s *testShell) create(args ...string) string {
	s.Helper()
	return idPattern.FindString(s.mustRun(append([]string{"create"}, args...)...))
}

func (s *testShell) task(id string) (t struct {
	Task    kanban.Task
	Parents []string
},
) {
	s.Helper()
	if err := json.Unmarshal([]byte(s.mustRun("show", id, "--json")), &t); err != nil {
		s.Fatal(err)
	}
	return t
}

// TestATerminalObeysNoWorker checks that control characters in a worker's log are masked on a
// terminal, but not in a pipe.
func TestATerminalObeysNoWorker(t *testing.T) {
	s := newShell(t)
	id := s.create("x")
	output := "\x1b[31mred\x1b]52;c;aGk=\a\n\x1b[2Jtwo\n"
	log := filepath.Join(s.root, "kanban/logs", id+".log")
	if err := errors.Join(os.MkdirAll(filepath.Dir(log), 0o755), os.WriteFile(log, []byte(output), 0o644)); err != nil {
		t.Fatal(err)
	}
	if out := s.mustRun("log", id); out != output {
		t.Errorf("a program reads %q", out)
	}
	s.outIsTerminal = true
	if out := s.mustRun("log", id); strings.Contains(out, "\x1b]") || strings.Contains(out, "\x1b[2J") || strings.Count(out, "\n") != 2 {
		t.Errorf("a terminal gets %q", out)
	}
}

// TestDoctorNamesAWriterThatDoesNotEnd checks that `doctor` names the process of a transaction that
// never ends.
func TestDoctorNamesAWriterThatDoesNotEnd(t *testing.T) {
	s := newShell(t)
	s.mustRun("init")
	db, err := sql.Open("sqlite", filepath.Join(s.root, "kanban.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	conn, err := db.Conn(t.Context())
	if err == nil {
		_, err = conn.ExecContext(t.Context(), "BEGIN IMMEDIATE")
	}
	if err != nil {
		t.Fatal(err)
	}
	if code, out, _ := s.run("doctor"); code != cmdline.ExitFailed || !strings.Contains(out, "another program is writing to the board") {
		t.Errorf("exit code %d: %s", code, out)
	}
	_ = conn.Close() // Closing the connection ends the transaction.
}

// TestAnAgentWritesNothingIntoJSONThatATerminalObeys checks that JSON output escapes terminal
// control characters.
func TestAnAgentWritesNothingIntoJSONThatATerminalObeys(t *testing.T) {
	s := newShell(t)
	id := s.create("hello")
	s.mustRun("comment", id, "\u009b2J\u202etxt")
	s.mustRun("boards", "create", "second", "--name", "\u009d0;owned\u009c")
	for _, args := range [][]string{{"show", id, "--json"}, {"tail", id, "--json", "--no-follow"}, {"boards", "list", "--json"}, {"stats", "--all"}} {
		if out := s.mustRun(args...); strings.ContainsAny(out, "\u009b\u009c\u009d\u202e") || !strings.Contains(out, `\u`) && args[0] != "tail" {
			t.Errorf("%q: %q", args, out)
		}
	}
}

// TestATerminalObeysNoTask checks that control characters in a task's ID are masked on a terminal.
func TestATerminalObeysNoTask(t *testing.T) {
	s := newShell(t)
	s.mustRun("init")
	db, err := sql.Open("sqlite", filepath.Join(s.root, "kanban.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	id := "t\n\x1b[31m" + strings.Repeat("x", 100_000)
	_, err = db.Exec("INSERT INTO tasks (id, title, body, assignee, status, created_at) VALUES (?1, ?1, ?1, 'coder', 'ready', 1)", id)
	if err != nil {
		t.Fatal(err)
	}
	for _, words := range [][]string{{"list"}, {"dispatch", "--dry-run", "--local"}, {"show", id}, {"stats"}, {"assignees"}} {
		out := s.mustRun(words...)
		if strings.Contains(out, "\x1b") || words[0] == "list" && len(out) > 2000 || words[0] != "show" && strings.Contains(out, "t\n") {
			t.Errorf("%.10q: %.200q", words, out)
		}
	}
}

func TestCreateTellsIDStatusAndAssignee(t *testing.T) {
	s := newShell(t)
	if out := s.mustRun("create", "One thing"); !regexp.MustCompile(`^Created t_[0-9a-f]{8}  \(ready, assignee=-\)\n$`).MatchString(out) {
		t.Errorf("%q", out)
	}
	code, out, errs := s.run("create", "Another", "--assignee", "Coder")
	if code != 0 || !strings.HasSuffix(out, "  (ready, assignee=coder)\n") || !strings.Contains(errs, "dispatch") {
		t.Errorf("%d %q %q: a ready, assigned task without a dispatcher is worth a warning", code, out, errs)
	}
	for _, args := range [][]string{{"create", "x", "--triage", "--assignee", "coder"}, {"create", "x"}, {"create", "x", "--assignee", "coder", "--json"}} {
		if _, _, errs := s.run(args...); errs != "" {
			t.Errorf("%q warns: %q", args, errs)
		}
	}
	s.checkFails(cmdline.ExitFailed, "no-such", "create", "x", "--parent", "no-such")
}

func TestClaimReclaimAndHeartbeatSayWhatTheContractSays(t *testing.T) {
	s := newShell(t)
	id := s.create("x", "--assignee", "coder")
	if out := s.mustRun("claim", id); !strings.HasPrefix(out, "Claimed "+id+"\nWorkspace: ") {
		t.Errorf("%q", out)
	}
	s.checkFails(cmdline.ExitFailed, "cannot claim "+id+": status=running lock=", "claim", id)
	if out := s.mustRun("heartbeat", id); out != "Heartbeat recorded for "+id+"\n" {
		t.Errorf("%q", out)
	}
	if out := s.mustRun("reclaim", id, "--local", "too slow"); out != "Reclaimed "+id+"\n" {
		t.Errorf("%q", out)
	}
	s.checkFails(cmdline.ExitFailed, "cannot reclaim "+id+" (not running or unknown id)", "reclaim", id, "--local")
	s.checkFails(cmdline.ExitFailed, "cannot reclaim t_00000000 (not running or unknown id)", "reclaim", "t_00000000", "--local")
}

func TestATaskFromItsCreationToTheArchive(t *testing.T) {
	s := newShell(t)
	parent, child := s.create("parent", "--body", "text\x1b[31m"), s.create("child")
	s.mustRun("assign", parent, "coder")
	s.mustRun("link", parent, child)
	if got := s.task(child); got.Task.Status != "todo" || got.Parents[0] != parent {
		t.Errorf("the child is %s, waits for %v", got.Task.Status, got.Parents)
	}
	s.mustRun("comment", parent, "a", "remark")
	s.mustRun("block", parent, "no", "key")
	s.checkFails(cmdline.ExitFailed, "cannot promote", "promote", child)
	s.mustRun("unblock", parent)
	s.mustRun("edit", parent, "--title", "new title", "--priority", "5")
	s.mustRun("complete", parent, "--summary", "fine")
	if got := s.task(child); got.Task.Status != "ready" {
		t.Errorf("the child is %s", got.Task.Status)
	}
	out := s.mustRun("show", parent)
	for _, want := range []string{"new title", "completed", "remark", "text"} {
		if !strings.Contains(out, want) {
			t.Errorf("show has no %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "\x1b") {
		t.Errorf("what an agent wrote reaches the terminal: %q", out)
	}
	s.mustRun("schedule", child, "later")
	s.mustRun("unblock", child)
	s.mustRun("archive", parent, child)
	if out := s.mustRun("list"); strings.Contains(out, parent) {
		t.Errorf("an archived task is listed: %s", out)
	}
	if out := s.mustRun("list", "--archived", "--json"); strings.Count(out, `"archived"`) != 2 {
		t.Errorf("%s", out)
	}
	s.mustRun("archive", "--rm", parent)
	s.checkFails(cmdline.ExitFailed, "no such task", "show", parent)
	if out := s.mustRun("watch", "--no-follow"); !strings.Contains(out, child+"  archived") || strings.Contains(out, parent+"  ") {
		t.Errorf("the events are:\n%s", out)
	}
	if out := s.mustRun("tail", child, "--json", "--no-follow", "-n", "2"); strings.Count(out, "\n") != 2 {
		t.Errorf("%s", out)
	}
	if out := s.mustRun("stats"); !strings.Contains(out, "archived") {
		t.Errorf("%s", out)
	}
}

// TestDispatchPrintsAPass checks the labels, order and form of the report of `dispatch` (contract,
// 23.1).
func TestDispatchPrintsAPass(t *testing.T) {
	s := newShell(t)
	a := s.create("a", "--assignee", "coder")
	n, h := s.create("n"), s.create("h", "--assignee", "somebody")
	want := fmt.Sprintf(`Reclaimed:    0
Crashed:      0
Timed out:    0
Stale:        0
Auto-blocked: 0
Promoted:     0
Spawned:      1
  - %s  ->  coder  @ - (dry)
Skipped (unassigned): %s
Skipped (non-spawnable assignee — terminal lane, OK): %s
`, a, n, h)
	if out := s.mustRun("dispatch", "--dry-run", "--local"); out != want {
		t.Errorf("got\n%swant\n%s", out, want)
	}
	out := s.mustRun("dispatch", "--dry-run", "--local", "--json")
	last := -1
	for _, key := range []string{
		"reclaimed", "crashed", "timed_out", "stale", "auto_blocked", "promoted", "spawned", "skipped_unassigned", "skipped_nonspawnable",
		"skipped_per_profile_capped", "auto_assigned_default",
	} {
		at := strings.Index(out, "\n  \""+key+"\":")
		if at <= last {
			t.Errorf("%s is not in its place:\n%s", key, out)
		}
		last = at
	}
	if got := s.task(a).Task.Status; got != "ready" {
		t.Errorf("a dry run has made it %s", got)
	}
}

// TestDispatchReadsTheConfiguration checks that `dispatch` reads the configuration, prefers --max,
// and refuses invalid values (contract, 28.3).
func TestDispatchReadsTheConfiguration(t *testing.T) {
	s := newShell(t)
	for range 4 {
		s.create("x")
	}
	config := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(s.root, "config.yaml"), []byte("kanban:\n"+text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	spawned := func(args ...string) int {
		t.Helper()
		var res struct {
			Spawned []any `json:"spawned"`
		}
		if err := json.Unmarshal([]byte(s.mustRun(append([]string{"dispatch", "--dry-run", "--local", "--json"}, args...)...)), &res); err != nil {
			t.Fatal(err)
		}
		return len(res.Spawned)
	}
	config("  default_assignee: coder\n  max_in_progress_per_profile: \"2\"\n")
	if n := spawned(); n != 2 {
		t.Errorf("with a cap of 2 a profile, %d", n)
	}
	if out := s.mustRun("dispatch", "--dry-run", "--local"); !strings.Contains(out, "Auto-assigned to kanban.default_assignee='coder': ") ||
		!strings.Contains(out, "Deferred (coder at per-profile cap, 2 running): ") {
		t.Errorf("%s", out)
	}
	config("  default_assignee: coder\n  max_in_progress_per_profile: 0\n  max_in_progress: nonsense\n")
	if n := spawned(); n != 4 {
		t.Errorf("with caps that are none, %d", n)
	}
	config("  default_assignee: coder\n  max_in_progress: 1\n")
	if n := spawned(); n > 1 && n != 4 { // The contract's dry run does not count the tasks that it would start, and gives 4.
		t.Errorf("with a cap of 1, %d", n)
	}
}

func TestBoardsAreApart(t *testing.T) {
	s := newShell(t)
	s.mustRun("boards", "create", "Side", "--name", "The side")
	s.create("here")
	s.mustRun("--board", "side", "create", "there")
	if out := s.mustRun("list", "--board", "side"); strings.Contains(out, "here") && !strings.Contains(out, "there") {
		t.Errorf("%s", out)
	}
	s.checkFails(cmdline.ExitFailed, "does not exist", "--board", "nosuch", "list")
	s.checkFails(cmdline.ExitUsage, "cannot use board name", "--board", "a/b", "list")
	s.mustRun("boards", "switch", "side")
	if out := s.mustRun("boards", "list"); !strings.Contains(out, "* side") {
		t.Errorf("%s", out)
	}
	s.mustRun("boards", "rename", "side", "Other")
	if out := s.mustRun("boards", "show", "--json"); !strings.Contains(out, `"name": "Other"`) {
		t.Errorf("%s", out)
	}
	s.mustRun("boards", "rm", "side")
	if out := s.mustRun("boards", "current"); !strings.HasPrefix(out, "default ") {
		t.Errorf("%s", out)
	}
	s.checkFails(cmdline.ExitFailed, "", "boards", "rm", "default")
}

func TestDaemonIsDeprecated(t *testing.T) {
	s := newShell(t)
	code, _, errs := s.run("daemon")
	if code != 2 || !strings.Contains(errs, "DEPRECATED") || !strings.Contains(errs, "hermes gateway start") {
		t.Errorf("%d %q", code, errs)
	}
}

func TestWrongUsage(t *testing.T) {
	s := newShell(t)
	s.checkFails(cmdline.ExitUsage, `did you mean "create"?`, "creat")
	s.env["HERMES_BIN"] = filepath.Join(t.TempDir(), "none") // Otherwise the agent would replace this process.
	s.checkFails(cmdline.ExitUsage, "hermes kanban swarm", "swarm")
	s.checkFails(cmdline.ExitUsage, "expected: hinit kanban link PARENT CHILD", "link", "x")
	s.checkFails(cmdline.ExitUsage, "see: hinit kanban list --help", "list", "--nosuch")
	s.checkFails(cmdline.ExitUsage, "there is no such status", "list", "--status", "nosuch")
	for _, v := range verbs() {
		if code, out, _ := s.run(v.name, "--help"); code != cmdline.ExitDone || !strings.HasPrefix(out, "usage: hinit kanban "+v.name) {
			t.Errorf("%s --help: %d %q", v.name, code, out)
		}
	}
}

func TestDoctorFindsTheCommonestFaults(t *testing.T) {
	s := newShell(t)
	id := s.create("nobody")
	stranger := s.create("typing error", "--assignee", "codr")
	lost := s.create("lost", "--assignee", "coder")
	s.mustRun("claim", lost, "--ttl", "1")
	s.now = s.now.Add(time.Hour)
	code, out, _ := s.run("doctor")
	if code != cmdline.ExitFailed {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{
		id + ": no assignee", stranger + `: "codr" is no profile; did you mean coder?`, lost + ": its claim has run out", "no dispatcher runs",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if !strings.Contains(out, "or: hermes gateway start") {
		t.Errorf("no gateway is named that could dispatch:\n%s", out)
	}
	s.env["HERMES_KANBAN_DISPATCH_IN_GATEWAY"] = "0"
	if _, out, _ := s.run("doctor"); strings.Contains(out, "hermes gateway start") || !strings.Contains(out, "or: hinit kanban serve") {
		t.Errorf("with gateways that are told not to:\n%s", out)
	}
	if err := os.WriteFile(filepath.Join(s.root, "kanban.db"), []byte("this is no database, it never was one, and it is long enough"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, more := range []string{"-wal", "-shm"} {
		_ = os.Remove(filepath.Join(s.root, "kanban.db"+more))
	}
	if code, out, _ := s.run("doctor"); code != cmdline.ExitFailed || !strings.Contains(out, "not a database") {
		t.Errorf("a broken file: %d\n%s", code, out)
	}
}

func TestQuotedAsPythonDoes(t *testing.T) {
	for in, want := range map[string]string{"a": "'a'", "it's": `"it's"`, `both ' and "`: `'both \' and "'`, `\`: `'\\'`} {
		if got := pythonQuoted(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

// TestAllBoardsAtOnce checks that the status page's query of all boards does not create a missing
// board.
func TestAllBoardsAtOnce(t *testing.T) {
	s := newShell(t)
	if out := s.mustRun("stats", "--all"); strings.TrimSpace(out) != "[]" {
		t.Errorf("before there is a board: %s", out)
	}
	if _, err := os.Stat(filepath.Join(s.root, "kanban.db")); err == nil {
		t.Error("looking has made a board")
	}
	id := s.create("a <b>task</b>", "--assignee", "coder")
	s.mustRun("boards", "create", "other")
	s.mustRun("claim", id)
	s.mustRun("block", id, "no", "key")
	var list []boardOverview
	if err := json.Unmarshal([]byte(s.mustRun("stats", "--all", "--json")), &list); err != nil || len(list) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	o := list[0]
	if o.Board != "default" || list[1].Board != "other" || o.Stats.ByStatus["blocked"] != 1 || len(o.Blocked) != 1 || o.Blocked[0].ID != id {
		t.Errorf("got %+v", list)
	}
	if len(o.Runs) != 1 || o.Runs[0].Title != "a <b>task</b>" || o.Runs[0].Outcome != "blocked" || o.Runs[0].EndedAt == 0 {
		t.Errorf("got the attempts %+v", o.Runs)
	}
	if err := os.WriteFile(filepath.Join(s.root, "kanban", "boards", "other", "kanban.db"), []byte("no database"), 0o600); err != nil {
		t.Fatal(err)
	}
	list = nil
	if err := json.Unmarshal([]byte(s.mustRun("stats", "--all")), &list); err != nil || len(list) != 2 || list[1].Error == "" || len(list[0].Runs) != 1 {
		t.Errorf("with a broken board: %+v, %v", list, err)
	}
}
