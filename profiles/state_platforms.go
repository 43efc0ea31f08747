package profiles

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// parsePlatforms parses the JSON object with the chat platforms in a state file. words describes the platforms in trouble, see
// [State.PlatformTrouble]. all is the number of all platforms, and bad the number in trouble. It ignores values that it can't parse.
func parsePlatforms(value json.RawMessage) (words string, all, bad int) {
	var platforms map[string]json.RawMessage
	if json.Unmarshal(value, &platforms) != nil {
		return "", 0, 0
	}
	var problems []string
	for _, name := range slices.Sorted(maps.Keys(platforms)) {
		var p map[string]json.RawMessage
		if json.Unmarshal(platforms[name], &p) != nil {
			continue
		}
		state, _ := jsonText(p["state"])
		if state != "retrying" && state != "failed" && state != "fatal" {
			continue
		}
		bad++
		if len(problems) >= maxPlatforms {
			problems = append(problems[:maxPlatforms], "and more")
			continue
		}
		why := ""
		for _, key := range []string{"error_message", "message", "error", "last_error", "reason", "detail", "error_code"} {
			if message, ok := jsonText(p[key]); ok && strings.TrimSpace(message) != "" {
				why = ": " + shorten(strings.Join(strings.Fields(message), " "), maxPlatformMessage)
				break
			}
		}
		problems = append(problems, "platform "+shorten(name, 64)+" is "+state+why)
	}
	return strings.Join(problems, "; "), len(platforms), bad
}
