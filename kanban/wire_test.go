package kanban

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// What is null in the file is null in JSON, under the name of the column, and comes back as it was.
func TestWire(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	plain := b.create(NewTask{Title: "t"})
	rich := b.create(NewTask{Title: "ä\"", Body: "b", Assignee: "alpha", Skills: []string{"s"}, MaxRetries: new(int64(3)), GoalMode: true})
	b.run(rich, 71, true)
	for _, id := range []string{plain, rich} {
		data, err := json.Marshal(b.task(id))
		must(t, err)
		var got map[string]any
		must(t, json.Unmarshal(data, &got))
		for _, c := range tables[0].columns {
			var null bool
			must(t, b.db.QueryRow("SELECT "+c.name+" IS NULL FROM tasks WHERE id = ?", id).Scan(&null))
			if value, there := got[c.name]; !there || (value == nil) != null {
				t.Errorf("%s of %s is %v, null in the file: %v", c.name, id, value, null)
			}
		}
		var back Task
		must(t, json.Unmarshal(data, &back))
		if !reflect.DeepEqual(back, b.task(id)) {
			t.Errorf("%+v came back as %+v", b.task(id), back)
		}
	}
	run := b.lastRun(rich)
	for _, metadata := range []string{"", `{"a": [1]}`, "broken"} {
		run.Metadata = metadata
		data, err := json.Marshal(run)
		must(t, err)
		var back Run
		must(t, json.Unmarshal(data, &back))
		if metadata != "broken" && strings.ReplaceAll(back.Metadata, " ", "") != strings.ReplaceAll(metadata, " ", "") || back.ID != run.ID {
			t.Errorf("%q became %+v", metadata, back)
		}
	}
	event := b.events(rich)[0]
	data, err := json.Marshal(event)
	must(t, err)
	var got struct{ Payload map[string]any }
	if must(t, json.Unmarshal(data, &got)); got.Payload["assignee"] != "alpha" {
		t.Errorf("%s", data)
	}
	var back Event
	if must(t, json.Unmarshal(data, &back)); back.Kind != event.Kind || !json.Valid([]byte(back.Payload)) {
		t.Errorf("%+v", back)
	}
}
