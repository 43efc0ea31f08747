// Package failover tests the Lease of a cluster with pairs of hinit that share one. The tests take the Lease away in every
// possible way, and check that the two never serve at the same time.
//
// Each hinit is process 1 of its own namespaces and has its own data directory, so that only the Lease keeps a pair apart. The
// goroutines of the tests end with them.
package failover
