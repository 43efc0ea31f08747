package cli

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"hinit/internal/cmdline"
)

// expectedAgentFlags lists the flags of the agent's own commands (contract, section 23).
var expectedAgentFlags = map[string]string{
	"create": "body assignee parent workspace branch tenant priority triage idempotency-key max-runtime created-by skill max-retries model goal " +
		"goal-max-turns initial-status due json",
	"list": "mine assignee status tenant session archived sort workflow-template-id step-key json", "show": "state-type state-name json",
	"assign": "", "reclaim": "reason", "reassign": "reclaim reason", "link": "", "unlink": "", "claim": "ttl", "comment": "author max-len",
	"complete": "result summary metadata", "edit": "title body priority result summary metadata", "block": "ids", "schedule": "ids", "unblock": "reason",
	"promote": "ids force dry-run json", "archive": "rm", "tail": "interval", "dispatch": "dry-run max failure-limit json",
	"daemon": "force interval max failure-limit pidfile verbose", "watch": "assignee tenant kinds interval", "stats": "json", "log": "tail",
	"runs": "state-type state-name json", "heartbeat": "note", "assignees": "json", "gc": "event-retention-days log-retention-days", "init": "",
	"boards": "json all name description icon color switch delete default-workdir", "doctor": "json",
}

// agentScenarios are sequences of commands on one board. NAME= stores the printed ID, and $NAME stands
// for it. The exit codes are the agent's.
var agentScenarios = []struct {
	words string
	code  int
	keys  string // Required keys of the JSON; in a list, of its first element.
	says  string // Required part of the output or of the error.
}{
	{words: "init", says: "initialized at"},
	{words: "A=create one --assignee coder --body text --priority 2 --tenant t --max-runtime 30m --max-retries 3 --model m --skill s --goal --goal-max-turns 4", says: "ready, assignee=coder"},
	{
		words: "create two --parent $A --idempotency-key k --created-by me --due 2026-12-31 --json",
		keys: "id title body assignee status priority tenant workspace_kind workspace_path branch_name created_by created_at started_at completed_at result skills " +
			"max_runtime_seconds max_retries model_override session_id workflow_template_id current_step_key last_failure_error due_at",
		says: `"skills": []`,
	},
	{words: "B=create three --workspace worktree:/repo --branch wt/x --triage", says: "(triage, assignee=-)"},
	{words: "C=create four --initial-status blocked --assignee ops", says: "(blocked, assignee=ops)"},
	{words: "D=create five --initial-status running", says: "(ready, assignee=-)"},
	{words: "create a b", code: 2, says: "expected: hinit kanban create TITLE"},
	{words: "create", code: 2},
	{words: "create x --max-runtime soon", code: 2, says: "write 90s, 30m, 2h, 1d"},
	{words: "create x --max-retries 0", code: 2},
	{words: "create x --initial-status done", code: 2},
	{words: "create x --branch b", code: 2},
	{words: "create x --workspace nowhere", code: 2},
	{words: "create x --skill a,b", code: 1},
	{words: "create x --parent t_00000000", code: 1, says: "t_00000000"},
	{words: "list --mine --json", keys: "id status assignee skills", says: `"one"`},
	{words: "list --assignee ops --status blocked --sort created-desc", says: "four"},
	{words: "list --tenant t --session none --archived --n 3 --workflow-template-id w --step-key k --json", says: "[]"},
	{words: "list --status nosuch", code: 2},
	{words: "list --sort nosuch", code: 2},
	{words: "list --assignee coder --sort updated --n 1", says: "one"},
	{words: "show $A --json", keys: "task latest_summary parents children comments events runs"},
	{words: "show $A --json", says: `"parents": [],`}, // An empty list must not be null, because Python programs expect a list.
	{words: "show $A --state-type outcome --state-name completed", says: "one"},
	{words: "show $A --state-type outcome", code: 2},
	{words: "show t_00000000", code: 1, says: "no such task"},
	{words: "claim $A --ttl 100", says: "Workspace: /"},
	{words: "claim $A", code: 1, says: "status=running lock="},
	{words: "claim t_00000000", code: 1},
	{words: "heartbeat $A --note still --run 1", says: "Heartbeat recorded for"},
	{words: "heartbeat $D", code: 1},
	{words: "assign $A ops", code: 1, says: "--reclaim"},
	{words: "complete $A --run 99", code: 1},
	{words: "reclaim $A --reason slow --local", says: "Reclaimed"},
	{words: "reclaim $A --local", code: 1, says: "(not running or unknown id)"},
	{words: "reassign $A ops --reclaim --reason why --local", says: "Reassigned"},
	{words: "reassign t_00000000 ops --local", code: 1},
	{words: "assign $A none", says: "to -"},
	{words: "assign t_00000000 ops", code: 1},
	{words: "assign $A coder"},
	{words: "link $A $D", says: " -> "},
	{words: "link $A t_00000000", code: 1},
	{words: "unlink $A $D"},
	{words: "unlink $A $D", code: 1},
	{words: "comment $A some words --author me --max-len 6"},
	{words: "comment $A x --max-len 0", code: 2},
	{words: "comment t_00000000 x", code: 1},
	{words: "edit $A --title new --body b --priority 3", says: "Edited"},
	{words: "edit $A --result early", code: 1, says: "only a task that is done"},
	{words: "edit $A", code: 2},
	{words: "block $A no key --ids $D --run 0", says: "Blocked"},
	{words: "block $A again", code: 1},
	{words: "unblock $A $D --reason found", says: "Unblocked"},
	{words: "unblock $A", code: 1},
	{words: "schedule $A --ids $D --reason later --run 0", says: "Scheduled"},
	{words: "unblock $A $D"},
	{words: "block $A --reason wait --ids $D"},
	{words: "promote $A --dry-run --json", keys: "task_id promoted dry_run reason error"},
	{words: "promote $A why --ids $D --force --reason so", says: "Promoted"},
	{words: "promote $A --json", code: 1, keys: "task_id error", says: `"promoted": false`},
	{words: "complete $A --result r --summary s --metadata {} --artifact /a --created-card $D", code: 1, says: "did not create"},
	{words: "complete $A $D --summary s", code: 2},
	{words: "complete $A --metadata [1]", code: 2},
	{words: `complete $A --result r --summary s --metadata {"n":1}`, says: "Completed"},
	{words: "complete t_00000000", code: 1},
	{words: "edit $A --result better --summary best --metadata {}", says: "Edited"},
	{words: "show $A --json", says: `"latest_summary": "best"`},
	{words: "runs $A --json", keys: "id profile status outcome started_at ended_at summary error metadata worker_pid step_key", says: "completed"},
	{words: "runs $A --state-type status --state-name done", says: "coder"},
	{words: "runs t_00000000 --json", says: "[]"},
	{words: "log $A --tail 10", code: 1, says: "no worker has written one"},
	{words: "tail $A --interval 2 --no-follow --n 1 --json", keys: "id task_id run_id kind payload created_at", says: "edited"},
	{words: "watch --assignee coder --tenant t --kinds completed,blocked --interval 1 --no-follow --n 5 --json", says: "completed"},
	{words: "watch --kinds nosuch --no-follow"},
	{words: "stats --json", keys: "by_status by_assignee oldest_ready_age_seconds now"},
	{words: "stats --all", keys: "board stats"},
	{words: "assignees --json", keys: "name on_disk counts"},
	{words: "boards list --json --all", keys: "slug name description icon color created_at archived db_path is_current counts total"},
	{words: "boards", says: "default"},
	{words: "boards create side --name Side --description d --icon i --color c --switch --default-workdir /w", says: "Created board side"},
	{words: "boards set-default-workdir side", says: "work in -"},
	{words: "boards switch nosuch", code: 1, says: "does not exist"},
	{words: "boards create a/b", code: 2},
	{words: "boards nosuch", code: 2},
	{words: "boards rm side --delete", says: "Deleted"},
	{words: "dispatch --dry-run --local --max 0 --failure-limit 3 --json", keys: "reclaimed crashed timed_out stale auto_blocked promoted spawned skipped_unassigned " +
		"skipped_nonspawnable skipped_per_profile_capped auto_assigned_default"},
	{words: "daemon --interval 1 --max 1 --failure-limit 1 --pidfile /nowhere --verbose -v", code: 2, says: "DEPRECATED"},
	{words: "gc --event-retention-days 2 --log-retention-days 3 --json", keys: "events logs"},
	{words: "gc --event-retention-days 0", code: 2},
	{words: "doctor --json", code: 1, keys: "findings"},
	{words: "diagnostics", code: 1, says: "dispatcher"},
	{words: "archive $A $D", says: "Archived"},
	{words: "archive", code: 1},
	{words: "archive --rm $A $D", says: "Deleted"},
	{words: "archive --rm $C", code: 1, says: "archive it first"},
	{words: "backup /dev/null", code: 1},
	{words: "--board nosuch list", code: 1, says: "does not exist"},
	{words: "list --board a/b", code: 2},
	{words: "nosuch", code: 2},
	{words: "help", says: "Exit codes"},
	{words: "", says: "Exit codes"},
}

// TestTheAgentsCommandLine checks that all command lines of the agent's own command work, with the
// same exit codes and JSON names.
func TestTheAgentsCommandLine(t *testing.T) {
	s := newShell(t)
	s.env["HERMES_PROFILE"] = "coder"
	ids, used := make(map[string]string), make(map[string][]string)
	for _, row := range agentScenarios {
		line, name := row.words, ""
		if n, rest, is := strings.Cut(line, "="); is && len(n) == 1 {
			name, line = n, rest
		}
		words := strings.Fields(os.Expand(line, func(name string) string { return ids[name] }))
		code, out, errs := s.run(words...)
		if code != row.code || !strings.Contains(out+errs, row.says) {
			t.Errorf("%s: exit code %d, want %d, with %q:\n%s%s", row.words, code, row.code, row.says, out, errs)
		}
		if code != cmdline.ExitDone && strings.Count(errs, "\n") > 1 {
			t.Errorf("%s: the error has more than a line: %q", row.words, errs)
		}
		if name != "" {
			ids[name] = idPattern.FindString(out)
		}
		if row.keys != "" {
			checkKeys(t, row.words, out, row.keys)
		}
		for _, w := range words[min(1, len(words)):] {
			if flag, _, _ := strings.Cut(w, "="); strings.HasPrefix(w, "-") {
				used[words[0]] = append(used[words[0]], strings.TrimLeft(flag, "-"))
			}
		}
	}
	page, err := os.ReadFile("../../docs/reference/kanban.md")
	if err != nil {
		t.Fatal(err)
	}
	used["reclaim"] = append(used["reclaim"], "local")
	flags := make(map[string][]string)
	for line := range strings.Lines(string(page)) {
		words := strings.Fields(line)
		if !strings.HasPrefix(line, "hinit kanban ") || words[2] == "COMMAND" {
			continue
		}
		for _, word := range words[3:] {
			if name := strings.TrimLeft(word, "-"); name != word && name != "board" {
				flags[words[2]] = append(flags[words[2]], name)
			}
		}
	}
	for verb, list := range flags {
		for _, flag := range list {
			// These commands run until they are stopped; test/kanban tests them.
			if verb == "serve" || flag == "force" && verb == "daemon" {
				continue
			}
			if !slices.Contains(used[verb], flag) {
				t.Errorf("the page has %s --%s, and no row uses it", verb, flag)
			}
		}
	}
	for verb, list := range expectedAgentFlags {
		for flag := range strings.FieldsSeq(list) {
			if !slices.Contains(flags[verb], flag) {
				t.Errorf("the agent has %s --%s; the page has not", verb, flag)
			}
		}
	}
}

func checkKeys(t *testing.T, what, out, keys string) {
	t.Helper()
	var first map[string]json.RawMessage
	var all []map[string]json.RawMessage
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&all); err == nil && len(all) > 0 {
		first = all[0]
	} else if err := json.NewDecoder(strings.NewReader(out)).Decode(&first); err != nil {
		t.Errorf("%s: %v in %s", what, err, out)
	}
	for key := range strings.FieldsSeq(keys) {
		if _, has := first[key]; !has {
			t.Errorf("%s: the JSON has no %q:\n%s", what, key, out)
		}
	}
}

// TestAWorkersCommandsAreForItsOwnAttempt checks that a worker can end only its own attempt.
func TestAWorkersCommandsAreForItsOwnAttempt(t *testing.T) {
	s := newShell(t)
	id, other := s.create("x", "--assignee", "coder"), s.create("y")
	s.mustRun("claim", id)
	first := s.task(id).Task.CurrentRunID
	s.mustRun("reclaim", id, "--local")
	s.mustRun("claim", id)
	s.env["HERMES_KANBAN_TASK"], s.env["HERMES_KANBAN_RUN_ID"] = id, jsonNumber(first)
	for _, verb := range []string{"complete", "block", "schedule", "heartbeat"} {
		s.checkFails(cmdline.ExitFailed, "its status does not allow it", verb, id)
		s.checkFails(cmdline.ExitFailed, "changes no other task", verb, other)
	}
	s.env["HERMES_KANBAN_RUN_ID"] = jsonNumber(s.task(id).Task.CurrentRunID)
	s.mustRun("heartbeat", id)
	s.mustRun("comment", other, "allowed")
	s.mustRun("complete", id)
}

func jsonNumber(n int64) string {
	text, _ := json.Marshal(n)
	return string(text)
}
