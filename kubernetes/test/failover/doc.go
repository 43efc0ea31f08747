// Package failover tries the Lease of a cluster: pairs of hinit share one, lose it in every way, and never serve at the same
// time.
//
// Each hinit is process 1 of namespaces of its own, with a data directory of its own, so that the Lease alone keeps a pair apart.
// The goroutines of the tests end with them.
package failover
