// Package fleet tests the fleet on a real API server. It contains only tests, whose goroutines end with them.
package fleet
