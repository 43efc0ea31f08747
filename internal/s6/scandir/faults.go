//go:build faults

package scandir

// Panic makes the scanner's goroutine panic, for tests.
func (s *Scanner) Panic(value any) { s.requests <- func() { panic(value) } }
