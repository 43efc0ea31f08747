package client

import "fmt"

// Finding is the result of one check, as `hinit doctor` prints it.
type Finding struct {
	Check  string `json:"check"`  // subject of the check
	Result string `json:"result"` // ok, warning, failed
	Detail string `json:"detail"` // what was found, and what to do about it
}

// The results of a check.
const (
	ResultOK      = "ok"
	ResultWarning = "warning"
	ResultFailed  = "failed"
)

// Findings are the results of checks, in the order in which they ran.
type Findings []Finding

// OK adds a check that found nothing wrong. The detail is formatted with fmt.Sprintf, as in Warning and Failed.
func (f *Findings) OK(check, format string, args ...any) { f.add(check, ResultOK, format, args) }

// Warning adds a possible fault, or a check that could not run.
func (f *Findings) Warning(check, format string, args ...any) {
	f.add(check, ResultWarning, format, args)
}

// Failed adds a fault.
func (f *Findings) Failed(check, format string, args ...any) {
	f.add(check, ResultFailed, format, args)
}

func (f *Findings) add(check, result, format string, args []any) {
	*f = append(*f, Finding{Check: check, Result: result, Detail: fmt.Sprintf(format, args...)})
}
