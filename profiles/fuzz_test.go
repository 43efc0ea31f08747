package profiles

import (
	"bytes"
	"encoding/json"
	"testing"
)

func FuzzState(f *testing.F) {
	for _, seed := range []string{
		"", "{}", "null", "[]", ObservedState, `{"desired_state":null}`, `{"a":1,"a":2}`, "\ufeff{}", `{"\u00e9":1e999}`,
		`{"desired_state":{"x":[]}}`, `{"x":"\ud800"}`, ` { "desired_state" : "running" , "updated_at" : 1 } `, "\x00", "{\"\xff\":1}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		st, err := parseState(data)
		members, objErr := parseObject(data)
		if (err == nil) != (objErr == nil) {
			t.Fatalf("parseState says %v, parseObject %v", err, objErr)
		}
		if err != nil {
			if st != (State{}) || st.ShouldRun() {
				t.Fatalf("state %+v beside an error", st)
			}
			return
		}
		if st.ShouldRun() != (st.PriorState() == Running) {
			t.Fatalf("state %+v", st)
		}
		var before map[string]json.RawMessage
		if err := json.Unmarshal(bytes.TrimPrefix(data, []byte("\ufeff")), &before); err != nil {
			t.Fatalf("taken for an object: %v", err)
		}
		out := encodeObject(setMember(setMember(members, "desired_state", []byte(`"running"`)), "updated_at", []byte("1")))
		var after map[string]json.RawMessage
		if err := json.Unmarshal(out, &after); err != nil {
			t.Fatalf("wrote %q: %v", out, err)
		}
		for key, value := range before {
			if key != "desired_state" && key != "updated_at" && !bytes.Equal(after[key], value) {
				t.Fatalf("value of %q was %q and is %q", key, value, after[key])
			}
		}
		again, err := parseState(out)
		if err != nil || !again.ShouldRun() || again.Gateway != st.Gateway || again.PID != st.PID {
			t.Fatalf("after a round trip %+v, %v", again, err)
		}
		if second := encodeObject(must(parseObject(out))); !bytes.Equal(second, out) {
			t.Fatalf("not stable: %q, then %q", out, second)
		}
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
