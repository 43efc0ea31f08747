package boot

import "time"

// Line is one line of text that the boot has for the container's log, without its end. It belongs on standard error: the
// container's standard output is that of the CMD and the services.
type Line struct {
	Warning bool // worth showing for as long as the container runs
	Text    string
}

// Phase is one step of the boot.
type Phase struct {
	Name      string
	Seconds   float64
	Error     string // "" when it went well; of several errors the first
	Abandoned bool   // it exceeded its budget and was left behind; Error says so too
	Skipped   bool   // it did not run, because nothing that it depends on has changed
	Beside    bool   // it ran at the same time as the one before it
}

// stage2 is the prefix that the image's boot script gave its lines, which people and tests look for.
const stage2 = "[stage2] "

// SetupComplete is the last line of the image's boot script (contract, section 2.1, step 20), to be printed when [Prepare] and [RunHooks] are done.
const SetupComplete = stage2 + "Setup complete; starting user services"

func info(text string) Line    { return Line{Text: stage2 + text} }
func warning(text string) Line { return Line{Warning: true, Text: stage2 + "Warning: " + text} }

// since is how long an operation took, for a [Phase].
func since(start time.Time) float64 { return time.Since(start).Seconds() }
