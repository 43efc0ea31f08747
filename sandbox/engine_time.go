package sandbox

import (
	"fmt"
	"strings"
	"time"
)

// ParseTime reads a time as engines write it: RFC 3339 with any number of digits, or as podman prints it. An engine's zero time, which
// means never, is the zero Time.
func ParseTime(text string) (time.Time, error) {
	text = strings.TrimSpace(text)
	if text == "" || strings.HasPrefix(text, "0001-01-01") {
		return time.Time{}, nil
	}
	if at := strings.Index(text, " m="); at > 0 {
		text = text[:at]
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04:05.999999999 -0700 MST", "2006-01-02 15:04:05.999999999 -0700", "2006-01-02T15:04:05.999999999-0700"} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("cannot read the time %q", text)
}
