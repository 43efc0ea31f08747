package profiles

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"hinit/internal/fsutil"
)

// The two values of desired_state, the operator's intent.
const (
	Running = "running"
	Stopped = "stopped"
)

const (
	// StateFile is the name of the file with the [State] in a profile's home.
	StateFile   = "gateway_state.json"
	stateFile   = StateFile
	corruptFile = stateFile + ".corrupt"

	// maxState is the maximum size, in bytes, of a state file that hinit reads. State files usually have a few hundred bytes. A gateway
	// that serves thousands of profiles names them all.
	maxState = 256 << 10

	// maxStateCommas limits the number of values in a state file, because each value costs time.
	maxStateCommas = 10_000

	// stateTries is the number of attempts at a read, or a read-modify-write, while another program keeps writing the file.
	stateTries = 5
)

// State is the content of gateway_state.json in a profile's home. The zero value stands for a missing or unusable file. Both the
// gateway and the agent's commands write the file, and it outlives the gateway. So compare PID and StartTime with the running
// process before you rely on Gateway.
type State struct {
	Exists     bool   // the file exists and is a JSON object
	HasDesired bool   // desired_state exists and is not null
	Desired    string // desired_state; a value that isn't a string appears as its JSON text
	HasGateway bool   // gateway_state exists and is not null
	Gateway    string // gateway_state, which the gateway writes; a value that isn't a string appears as its JSON text

	PID              int    // PID of the gateway that wrote the file; 0 if unknown
	StartTime        uint64 // start time of PID in clock ticks since the machine booted (proc_pid_stat(5), field 22); 0 if unknown
	RestartRequested bool
	ExitReason       string // exit_reason; "" if the file has none
	Active           int    // number of answers the gateway is working on

	Platforms int    // number of the gateway's chat platforms
	Troubled  int    // number of platforms that are retrying or have failed
	platforms string // the text that Trouble returns

	HasServed bool   // served_profiles exists: the gateway reports which profiles it serves
	served    string // the names in served_profiles, with "/" before, between and after the names

	// Written is the modification time of the file. Beat is the time at which the gateway wrote it, or zero if hinit or a command
	// wrote it last. Equal ignores both, Active and the size.
	Written, Beat time.Time
	size          int // size of the file in bytes
}

// Trouble returns one line about the chat platforms that the gateway reports as retrying or failed, each with its message, sorted
// by name. It returns "" if no platform is in trouble. The gateway controls the text, so escape it before you print it on a
// terminal.
func (s State) Trouble() string { return s.platforms }

// Serves reports whether the gateway says in served_profiles that it serves a profile.
func (s State) Serves(profile string) bool { return strings.Contains(s.served, "/"+profile+"/") }

// Equal reports whether s and o have the same content, ignoring Active, the size of the file and the times of the writes.
func (s State) Equal(o State) bool {
	s.Written, o.Written, s.Beat, o.Beat = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	s.Active, o.Active, s.size, o.size = 0, 0, 0, 0
	return s == o
}

// Prior returns the state by which the boot decides whether to start the gateway. This is the operator's intent, if there is one.
// Otherwise it is the gateway's last state, where "draining" and "degraded" count as "running". If neither is known, it is "None"
// (contract, section 6).
func (s State) Prior() string {
	switch {
	case s.HasDesired:
		return s.Desired
	case !s.HasGateway:
		return "None"
	case s.Gateway == "draining" || s.Gateway == "degraded":
		return Running
	}
	return s.Gateway
}

// Start reports whether a gateway with this state file is wanted, which means that Prior is "running". decideAll applies the same
// rule at boot. A gateway that was starting, or failed to start, is deliberately not started again (contract, section 6).
func (s State) Start() bool { return s.Prior() == Running }

// ReadState reads the gateway state of a profile. For a missing file it returns the zero State without an error. An error names
// the file, and the State equals the zero State; treat the error as a warning (contract, section 6).
func (s *Store) ReadState(profile string) (State, error) { return fromHome(s, profile, readState) }

func readState(d *fsutil.Dir, home string) (State, error) {
	rel := filepath.Join(home, stateFile)
	data, info, err := readStamped(d, rel)
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, nil
	}
	if err != nil {
		return State{}, err
	}
	st, err := parseState(data)
	if err != nil {
		return State{size: len(data)}, fmt.Errorf("cannot read %q: %w", filepath.Join(d.Path(), rel), err)
	}
	st.Written, st.size = info.ModTime(), len(data)
	return st, nil
}

// readStamped reads a file, and returns the content and the metadata of the same version of the file. If other programs keep
// replacing the file, readStamped gives up after stateTries attempts, and the metadata may be newer than the content.
func readStamped(d *fsutil.Dir, rel string) (data []byte, info fs.FileInfo, err error) {
	for range stateTries {
		before, err := d.Lstat(rel)
		if err != nil {
			return nil, nil, err
		}
		if data, err = d.ReadFile(rel, maxState); err != nil {
			return nil, before, err
		}
		if info, err = d.Lstat(rel); err != nil {
			return nil, nil, err
		}
		if stampOf(before) == stampOf(info) {
			break
		}
	}
	return data, info, nil
}

func parseState(data []byte) (State, error) {
	members, err := parseObject(data)
	if err != nil {
		return State{}, err
	}
	st := State{Exists: true}
	for _, m := range members { // in the order of the file, so that the last value of a repeated key counts, as in Python
		switch m.key {
		case "desired_state":
			st.Desired, st.HasDesired = shortText(m.value, maxWord)
		case "gateway_state":
			st.Gateway, st.HasGateway = shortText(m.value, maxWord)
		case "exit_reason":
			st.ExitReason, _ = shortText(m.value, maxPlatformMessage)
		case "pid":
			st.PID, _ = strconv.Atoi(string(m.value))
		case "start_time":
			st.StartTime, _ = strconv.ParseUint(string(m.value), 10, 64)
		case "active_agents":
			st.Active, _ = strconv.Atoi(string(m.value))
			st.Active = max(st.Active, 0)
		case "restart_requested":
			st.RestartRequested = string(m.value) == "true"
		case "updated_at":
			st.Beat = beatOf(m.value)
		case "served_profiles":
			var names []string
			if json.Unmarshal(m.value, &names) == nil && names != nil {
				names = slices.DeleteFunc(names, func(name string) bool { return len(name) > maxWord || strings.Contains(name, "/") })
				st.HasServed, st.served = true, "/"+strings.Join(names[:min(len(names), maxServed)], "/")+"/"
			}
		case "platforms":
			st.platforms, st.Platforms, st.Troubled = platformTrouble(m.value)
		}
	}
	return st, nil
}

// Limits on the parts of a state file that PID 1 keeps in memory for every profile. They are needed because the agent controls
// the file's content. The messages must also be short enough for a table that people read.
const (
	maxWord            = 64
	maxServed          = 2000 // maximum number of served profiles: the default of profiles.max
	maxPlatforms       = 8
	maxPlatformMessage = 300
)

// shorten cuts text to the given number of bytes, at the end of a character, and appends "…". It returns a shorter text
// unchanged.
func shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// shortText returns a shortened copy of the text that jsonText returns. As a copy, it does not keep the whole file in memory.
func shortText(value json.RawMessage, most int) (string, bool) {
	text, is := jsonText(value)
	return strings.Clone(shorten(text, most)), is
}

// jsonText returns the decoded text of a JSON string. For any other value it returns the JSON text. The second result is false
// for null, and for no value.
func jsonText(value json.RawMessage) (string, bool) {
	var str string
	switch {
	case len(value) == 0, string(value) == "null":
		return "", false
	case value[0] == '"' && json.Unmarshal(value, &str) == nil:
		return str, true
	}
	var compact bytes.Buffer
	if json.Compact(&compact, value) != nil {
		return string(value), true
	}
	return compact.String(), true
}

// member is a key of a JSON object with its value. It keeps the bytes as they are in the file, so that a rewrite preserves
// numbers of any size, escapes and the order.
type member struct {
	key    string // the decoded key
	rawKey []byte // the key with its quotes, as in the file
	value  json.RawMessage
}

// parseObject splits a JSON object into its members. A byte order mark at the beginning is allowed.
func parseObject(data []byte) ([]member, error) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	switch {
	case !utf8.Valid(data):
		return nil, errors.New("it isn't UTF-8")
	case bytes.Count(data, []byte(",")) > maxStateCommas:
		return nil, fmt.Errorf("it has more than %d values", maxStateCommas)
	}
	var whole json.RawMessage
	if err := json.Unmarshal(data, &whole); err != nil { // Unmarshal also refuses text after the object
		return nil, fmt.Errorf("it isn't JSON: %w", err)
	}
	if whole[0] != '{' {
		return nil, errors.New("it isn't a JSON object")
	}
	dec := json.NewDecoder(bytes.NewReader(whole))
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	var members []member
	for dec.More() {
		from := dec.InputOffset()
		tok, err := dec.Token()
		if err != nil {
			return nil, err
		}
		m := member{key: tok.(string)} // whole is valid JSON, so this token is a key
		raw := whole[from:dec.InputOffset()]
		m.rawKey = raw[bytes.IndexByte(raw, '"'):]
		if err := dec.Decode(&m.value); err != nil {
			return nil, err
		}
		members = append(members, m)
	}
	return members, nil
}

// setMember sets the value of key. It replaces the first occurrence and drops later ones, or adds the key at the end.
func setMember(members []member, key string, value []byte) []member {
	isKey := func(m member) bool { return m.key == key }
	i := slices.IndexFunc(members, isKey)
	if i < 0 {
		return append(members, member{key: key, rawKey: []byte(strconv.Quote(key)), value: value})
	}
	members[i].value = value
	return append(members[:i+1], slices.DeleteFunc(members[i+1:], isKey)...)
}

func encodeObject(members []member) []byte {
	var b bytes.Buffer
	for i, m := range members {
		b.WriteByte("{,"[min(i, 1)])
		b.Write(m.rawKey)
		b.WriteByte(':')
		b.Write(m.value)
	}
	b.WriteString("}\n")
	return b.Bytes()
}

// durability says which failures a completed write survives. Every write survives the end of this process.
type durability bool

const (
	syncLater durability = false // survives a crash of the machine only after a later call of syncState
	synced    durability = true  // survives a crash of the machine
)

// syncState makes earlier writes of the profile's state file survive a crash of the machine, if their durability was syncLater.
func (s *Store) syncState(profile string) error {
	return s.WithHome(profile, func(d *fsutil.Dir, home string) error {
		err := d.SyncName(filepath.Join(home, stateFile))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // for a removed profile there is nothing to sync
			return fmt.Errorf("cannot set the desired state of profile %q: %w", profile, err)
		}
		return nil
	})
}

// setDesired writes the operator's intent want, [Running] or [Stopped], into the state file of profile. It sets updated_at to the
// current time in whole seconds. The rest of the file keeps every byte, and the file keeps its mode (a new file has 0644). No
// reader ever sees half a file, even after a crash.
//
// A file that is not a JSON object is renamed to gateway_state.json.corrupt, and a new file replaces it. For a missing home the
// error is [ErrNotExist]. A symbolic link in place of the file is refused.
//
// The lock excludes only other writers in this process, not the gateway and the agent's commands. So, right before setDesired
// replaces the file, it checks whether the file has changed, and starts again if so. An update by another writer can get lost
// between this check and the replacement. It also gets lost if the file has changed in every one of stateTries attempts.
// [Intents] handles the opposite case, in which another writer overwrites desired_state.
//
// The caller holds the lock of profile.
func (s *Store) setDesired(profile, want string, how durability) error {
	if want != Running && want != Stopped {
		return fmt.Errorf("cannot set the desired state of profile %q: want %q or %q, not %q", profile, Running, Stopped, want)
	}
	return s.WithHome(profile, func(d *fsutil.Dir, home string) error { return s.setDesiredIn(d, home, profile, want, how) })
}

// setDesiredIn works like setDesired, for a volume that is already open. home is the profile's home, relative to d.
func (s *Store) setDesiredIn(d *fsutil.Dir, home, profile, want string, how durability) error {
	if err := homeExists(d, home); err != nil {
		return fmt.Errorf("cannot set the desired state of profile %q: %w", profile, err)
	}
	for try := 1; ; try++ {
		ok, err := s.trySetDesired(d, filepath.Join(home, stateFile), want, try >= stateTries, how)
		if ok {
			makeReserve(d, home)
		}
		if ok || err != nil {
			return err
		}
	}
}

// trySetDesired makes one attempt to read, change and write the state file rel. It returns false if another program has changed
// the file since it was read. If force is true, trySetDesired overwrites the file even then.
func (s *Store) trySetDesired(d *fsutil.Dir, rel, want string, force bool, how durability) (bool, error) {
	data, info, err := readStamped(d, rel)
	var members []member
	mode := fs.FileMode(0o644)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		info = nil
	case err != nil && !errors.Is(err, fsutil.ErrTooLarge):
		return false, err
	default:
		mode = info.Mode().Perm()
		if err == nil {
			members, err = parseObject(data)
		}
		if err != nil { // not a JSON object, or too large
			err := d.Rename(rel, filepath.Join(filepath.Dir(rel), corruptFile))
			if errors.Is(err, fs.ErrNotExist) {
				return false, nil // the file was removed in between: start again
			}
			if err != nil {
				return false, err
			}
			info, members = nil, nil
		}
	}
	members = setMember(members, "desired_state", []byte(strconv.Quote(want)))
	members = setMember(members, "updated_at", strconv.AppendInt(nil, s.now().Unix(), 10))

	data = encodeObject(members)
	err = d.Replace(rel, data, fsutil.ReplaceOptions{Mode: mode, KeepMode: true, SyncNameLater: how == syncLater, Confirm: func(now fs.FileInfo) error {
		if same := (now == nil) == (info == nil) && (now == nil || stampOf(now) == stampOf(info)); !same && !force {
			return errChanged
		}
		return nil
	}})
	if errors.Is(err, errChanged) {
		return false, nil
	}
	if isDiskFull(err) && writeOverReserve(d, filepath.Dir(rel), rel, data, mode) == nil {
		err = nil
	}
	return err == nil, err
}

// errChanged means that another program has written the file since it was read.
var errChanged = errors.New("it has changed meanwhile")

// homeExists returns [ErrNotExist] if home is missing or no directory, and another error for a symbolic link.
func homeExists(d *fsutil.Dir, home string) error {
	info, err := d.Lstat(home)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ErrNotExist
	case err != nil:
		return err
	case info.Mode()&fs.ModeSymlink != 0:
		return fmt.Errorf("%q: %w", filepath.Join(d.Path(), home), fsutil.ErrSymlink)
	case !info.IsDir():
		return ErrNotExist
	}
	return nil
}

// stateError returns the text of the warning that the state file of profile can't be used because of err.
func stateError(profile string, err error) error {
	return fmt.Errorf("cannot use the state of profile %q: %w", profile, err)
}
