package boot

import "time"

// Line is one line of the boot for the container's log, without its newline. It belongs on standard error: standard output is that
// of the CMD and the services.
type Line struct {
	Warning bool // worth showing for as long as the container runs
	Text    string
}

// stage2 is the prefix of the image's boot script, which people and tests search for.
const stage2 = "[stage2] "

// SetupComplete is the last line of the image's boot script (contract, section 2.1, step 20). Print it after [Prepare] and
// [RunHooks].
const SetupComplete = stage2 + "Setup complete; starting user services"

func info(text string) Line    { return Line{Text: stage2 + text} }
func warning(text string) Line { return Line{Warning: true, Text: stage2 + "Warning: " + text} }

func since(start time.Time) float64 { return time.Since(start).Seconds() }
