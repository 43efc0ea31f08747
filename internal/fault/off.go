//go:build !faults

package fault

// Enabled says whether this binary has the faults in it.
const Enabled = false

// Before returns the error that takes the place of the call, nil to make it.
func Before(Call, string) error { return nil }

// After takes note that the call was made and did not fail.
func After(Call, string) {}

// Room returns how many of n bytes a write may take.
func Room(_ Call, _ string, n int) int { return n }
