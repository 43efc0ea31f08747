//go:build faults

package scandir

// Panic makes the scanner's goroutine panic, when a test asks for it.
func (s *Scanner) Panic(value any) { s.requests <- func() { panic(value) } }
