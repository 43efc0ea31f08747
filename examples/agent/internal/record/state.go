package record

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"time"
)

// Values of gateway_state that this agent writes.
const (
	StateStarting      = "starting"
	StateRunning       = "running"
	StateDraining      = "draining"
	StateStopped       = "stopped"
	StateStartupFailed = "startup_failed"
)

// UpdateState merges fields into gateway_state.json of a home and sets updated_at. It keeps other keys, such as the
// desired_state that an operator's command has written. A missing file, or one without a JSON object, counts as empty.
// Writers don't lock the file, so a change that another program makes between the read and the rename is lost.
func UpdateState(home string, fields map[string]any) error {
	path := filepath.Join(home, "gateway_state.json")
	state := readJSONObject(path)
	for key, value := range fields {
		raw, err := json.Marshal(value)
		if err != nil {
			return err
		}
		state[key] = raw
	}
	stamp, err := json.Marshal(Timestamp(time.Now()))
	if err != nil {
		return err
	}
	state["updated_at"] = stamp
	data, err := json.Marshal(state)
	if err != nil {
		return err
	}
	return ReplaceFile(path, data, 0o600, ".gateway_state_*.tmp")
}

// readJSONObject returns the top-level keys of a JSON object with their values untouched.
func readJSONObject(path string) map[string]json.RawMessage {
	var object map[string]json.RawMessage
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(bytes.TrimPrefix(data, []byte("\ufeff")), &object)
	}
	if err != nil || object == nil {
		return map[string]json.RawMessage{}
	}
	return object
}
