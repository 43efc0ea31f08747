package profiles

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"hinit/internal/fsutil"
)

// The boot log is a file on the volume. Each boot adds one line for each profile (contract, section 5.1).
const (
	logsDir    = "logs"
	bootLog    = logsDir + "/container-boot.log"
	bootLogMax = 262144 // bytes; a larger log is rotated before the next boot adds lines

	bootLogTime = "2006-01-02T15:04:05-0700" // layout of the time, which is local time
)

// appendBootLog adds a line to the boot log for each decision of Reconcile. If the log has become too large, it first renames it
// to container-boot.log.1.
func appendBootLog(d *fsutil.Dir, at time.Time, decisions []Decision) error {
	var b strings.Builder
	for _, dec := range decisions {
		fmt.Fprintf(&b, "%s %s prior_exit=%s\n", at.Local().Format(bootLogTime), dec.logFields(), dec.PriorExit)
	}
	if err := d.Mkdir(logsDir, 0o755); err != nil {
		return err
	}
	var rotateErr error
	info, err := d.Lstat(bootLog)
	if err == nil && info.Size() >= bootLogMax {
		rotateErr = d.Rename(bootLog, bootLog+".1")
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		rotateErr = err
	}
	_, err = d.Append(bootLog, []byte(b.String()), 0o644)
	return errors.Join(rotateErr, err)
}

// logFields formats the fields of a decision that appear both in the boot log and in the container's output.
func (dec Decision) logFields() string {
	return fmt.Sprintf("profile=%s prior_state=%s action=%s", dec.Profile.Name, quoteField(dec.PriorState), dec.Action)
}

// quoteField formats a value that comes from one of the agent's files for the log. It quotes a value that is empty or too long,
// or that contains characters that would end the field or the line.
func quoteField(value string) string {
	const long = 64
	plain := value != "" && len(value) <= long
	for i := 0; plain && i < len(value); i++ {
		plain = '!' <= value[i] && value[i] <= '~' && value[i] != '"'
	}
	if plain {
		return value
	}
	if len(value) > long {
		value = strings.ToValidUTF8(value[:long], "") + "..."
	}
	return strings.ReplaceAll(strconv.QuoteToASCII(value), " ", `\x20`)
}
