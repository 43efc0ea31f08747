package kanban

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// TestWire checks that a database null is null in JSON, under the column's name, and is read back
// as null.
func TestWire(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	plain := b.create(Task{Title: "t"})
	rich := b.create(Task{Title: "ä\"", Body: "b", Assignee: "alpha", Skills: []string{"s"}, MaxRetries: new(int64(3)), GoalMode: true})
	b.claimForPID(rich, 71, true)
	for _, id := range []string{plain, rich} {
		data, err := json.Marshal(b.task(id))
		must(t, err)
		var got map[string]any
		must(t, json.Unmarshal(data, &got))
		for _, c := range tasksTable.columns {
			var null bool
			must(t, b.db.QueryRow("SELECT "+c.name+" IS NULL FROM tasks WHERE id = ?", id).Scan(&null))
			// In the agent's JSON, skills are a list even if the column is null.
			if value, there := got[c.name]; !there || (value == nil) != null && c.name != "skills" {
				t.Errorf("%s of %s is %v, null in the file: %v", c.name, id, value, null)
			}
		}
		var back Task
		must(t, json.Unmarshal(data, &back))
		if len(back.Skills) == 0 {
			back.Skills = nil
		}
		if !reflect.DeepEqual(back, b.task(id)) {
			t.Errorf("%+v came back as %+v", b.task(id), back)
		}
	}
	run := b.lastRun(rich)
	for metadata, want := range map[string]string{"": "null", `{"a": [1]}`: `{"a": [1]}`, "broken": `"broken"`} {
		run.Metadata = metadata
		data, err := json.Marshal(run)
		must(t, err)
		var got map[string]json.RawMessage
		must(t, json.Unmarshal(data, &got))
		if strings.ReplaceAll(string(got["metadata"]), " ", "") != strings.ReplaceAll(want, " ", "") || string(got["ended_at"]) != "null" {
			t.Errorf("%q became %s", metadata, data)
		}
	}
	data, err := json.Marshal(b.events(rich)[0])
	must(t, err)
	var got struct{ Payload map[string]any }
	if must(t, json.Unmarshal(data, &got)); got.Payload["assignee"] != "alpha" {
		t.Errorf("%s", data)
	}
}
