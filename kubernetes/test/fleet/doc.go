// Package fleet tries the fleet on a real API server. It has tests only. Its goroutines end with their tests.
package fleet
