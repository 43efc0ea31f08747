package kanban

import (
	"encoding/json"
	"reflect"
)

// A null in the file is null in JSON: readers in other languages need that.

// MarshalJSON implements [json.Marshaler].
func (t Task) MarshalJSON() ([]byte, error) { return wire(tasksTable, t), nil }

// MarshalJSON implements [json.Marshaler].
func (r Run) MarshalJSON() ([]byte, error) { return wire(runsTable, r), nil }

// MarshalJSON implements [json.Marshaler].
func (e Event) MarshalJSON() ([]byte, error) { return wire(eventsTable, e), nil }

// wire is a row of a table in JSON, under the names of the columns.
func wire(t table, row any) []byte {
	var o object
	for i, c := range t.columns {
		field := reflect.ValueOf(row).Field(i)
		value := field.Interface()
		switch column := field.String(); {
		case field.Kind() == reflect.Slice:
			value = append([]string{}, value.([]string)...)
		case field.IsZero() && (c.def == text || c.def == integer):
			value = nil
		case (c.name == "payload" || c.name == "metadata") && json.Valid([]byte(column)):
			value = json.RawMessage(column)
		}
		o = append(o, pair{c.name, value})
	}
	return []byte(encode(o))
}
