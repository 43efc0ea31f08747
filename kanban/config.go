package kanban

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/samber/lo"
	"go.yaml.in/yaml/v3"

	"hinit/internal/wholefile"
	"hinit/internal/yamltext"
)

// Defaults and limits. Most are equal to the values in the agent's own dispatcher, which may work on the same board. A number
// that isn't a [time.Duration] is a time in seconds, unless its comment or its name says otherwise.
const (
	DefaultClaimTTL          = 900 * time.Second
	DefaultCrashGrace        = 30 * time.Second
	DefaultRateLimitCooldown = 300 * time.Second
	DefaultFailureLimit      = 2
	DefaultBusyTimeout       = 120 * time.Second
	DefaultPassInterval      = 60 * time.Second
	DefaultStaleTimeout      = 14400 * time.Second
	DefaultRotateBytes       = 2 << 20
	DefaultLogBackups        = 1
	DefaultDepartedGrace     = 60 * time.Second // Time that a worker gets to end after the board has ended its attempt.

	TerminateGrace = 5 * time.Second // Time from SIGTERM to SIGKILL.

	heartbeatStaleAfter  = 3600
	recentSuccessWindow  = 3600
	activePRWindow       = 86400
	survivorRetrySeconds = 120 // Seconds until the next try to end a worker that survived SIGKILL. It keeps its task until then.
	clockSlackSeconds    = 60  // A time further in the future than this was written before the clock was set back.
	minSystemicCrashes   = 3   // Number of equal crashes in one pass that suggest a common cause.
	rateLimitedExitCode  = 75  // Exit code of a worker that has reached a quota.
	sigTerm              = 15
	failureErrorMaxChars = 500
)

// Config is the section `kanban:` of a profile's config.yaml. A nil limit is not set.
type Config struct {
	DispatchInGateway       bool
	Interval                time.Duration
	MaxSpawn                *int // Limit on all running workers, not on the starts in one pass.
	MaxInProgress           *int
	MaxInProgressPerProfile *int
	DefaultAssignee         string
	FailureLimit            int
	StaleTimeout            time.Duration // Run time after which a worker without a recent heartbeat is stale; 0: no limit.
	RotateBytes             int64
	LogBackups              *int
}

func (c Config) interval() time.Duration {
	return max(cmp.Or(max(c.Interval, 0), DefaultPassInterval), time.Second)
}

// GatewaysDispatch reports whether the agent's gateways dispatch tasks. The configuration says so, and the variable
// HERMES_KANBAN_DISPATCH_IN_GATEWAY can turn it off.
func (c Config) GatewaysDispatch(env Env) bool {
	no := []string{"0", "false", "no", "off"}
	return c.DispatchInGateway && !slices.Contains(no, strings.ToLower(env.trimmed("HERMES_KANBAN_DISPATCH_IN_GATEWAY")))
}

// ReadConfig reads the board's configuration from a config.yaml. If the file is missing or can't be read, it returns the
// defaults. A missing file is no error.
func ReadConfig(path string) (c Config, warnings []string, err error) {
	data, err := wholefile.Read(path, maxFileSize)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		c, warnings, err = ParseConfig(data)
	}
	if err != nil {
		c, _, _ = ParseConfig(nil)
		err = fmt.Errorf("cannot read configuration %s: %w", path, err)
	}
	return c, warnings, err
}

// ParseConfig parses the board's configuration. It ignores an invalid value and returns a warning that names the key, because a
// gateway must be able to start with any configuration file.
func ParseConfig(data []byte) (Config, []string, error) {
	var file struct {
		Kanban yaml.Node `yaml:"kanban"`
	}
	root, faults := yamltext.Parse(data)
	if len(faults) > 0 {
		return Config{}, nil, fmt.Errorf("line %d: %s", faults[0].Line, faults[0].Message)
	}
	if err := cmp.Or(root, new(yaml.Node)).Decode(&file); err != nil {
		return Config{}, nil, err
	}
	r := configReader{}
	if file.Kanban.Kind != 0 {
		if err := file.Kanban.Decode(&r.values); err != nil {
			r.warn("kanban", "a section with keys", file.Kanban.Value)
		}
	}
	c := Config{
		DispatchInGateway:       convertValue(&r, "dispatch_in_gateway", "true or false", true, true, convertType[bool]),
		Interval:                r.readSeconds("dispatch_interval_seconds", DefaultPassInterval, DefaultPassInterval),
		MaxSpawn:                r.readCount("max_spawn", 1),
		MaxInProgress:           r.readCount("max_in_progress", 1),
		MaxInProgressPerProfile: r.readCount("max_in_progress_per_profile", 1),
		FailureLimit:            *cmp.Or(r.readCount("failure_limit", 1), new(DefaultFailureLimit)),
		StaleTimeout:            r.readSeconds("dispatch_stale_timeout_seconds", DefaultStaleTimeout, 0),
		RotateBytes:             int64(*cmp.Or(r.readCount("worker_log_rotate_bytes", 1), new(DefaultRotateBytes))),
		LogBackups:              r.readCount("worker_log_backup_count", 0),
	}
	c.Interval = c.interval()
	c.DefaultAssignee = strings.TrimSpace(convertValue(&r, "default_assignee", "a profile's name", "", "", convertType[string]))
	return c, r.warnings, nil
}

type configReader struct {
	values   map[string]any
	warnings []string
}

func (r *configReader) warn(key, want string, got any) {
	r.warnings = append(r.warnings, fmt.Sprintf("kanban.%s must be %s, not %s; it is ignored", key, want, truncate(fmt.Sprintf("%#v", got), 80)))
}

// convertValue looks up a key and converts its value with the function use. It returns missing if the key is absent or null.
// If use rejects the value, convertValue returns invalid and adds a warning with the text want, which describes the valid
// values.
func convertValue[T any](r *configReader, key, want string, missing, invalid T, use func(v any) (T, bool)) T {
	v := r.values[key]
	if v == nil {
		return missing
	}
	got, ok := use(v)
	if !ok {
		r.warn(key, want, v)
		return invalid
	}
	return got
}

// convertType is the conversion for [convertValue] that accepts only values of the type T.
func convertType[T any](v any) (T, bool) {
	got, is := v.(T)
	return got, is
}

// ConvertInt converts a configuration value to an integer as Python's int() does: it accepts text with an integer, cuts off a
// fraction, and reads true as 1.
func ConvertInt(v any) (int, bool) {
	switch v := v.(type) {
	case int:
		return v, true
	case bool:
		return lo.Ternary(v, 1, 0), true
	case float64:
		if math.IsNaN(v) || math.Abs(v) > 1<<53 {
			return 0, false
		}
		return int(v), true
	case string:
		n, err := strconv.Atoi(strings.TrimSpace(v))
		return n, err == nil
	default:
		return 0, false
	}
}

func (r *configReader) readCount(key string, least int) *int {
	return convertValue(r, key, fmt.Sprintf("a whole number of at least %d", least), nil, nil, func(v any) (*int, bool) {
		n, ok := ConvertInt(v)
		return &n, ok && n >= least
	})
}

func (r *configReader) readSeconds(key string, missing, invalid time.Duration) time.Duration {
	return convertValue(r, key, "a number of seconds", missing, invalid, func(v any) (time.Duration, bool) {
		if _, is := v.(bool); is {
			return 0, false
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(fmt.Sprint(v)), 64)
		return time.Duration(n * float64(time.Second)), err == nil && n >= 0 && n <= 1e9
	})
}
