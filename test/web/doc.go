// Package web tests the installed hinit-web beside a real hinit. It tests the page, a real Prometheus that scrapes it, and logs
// that are sent to failing receivers. It has no code of its own and owns no goroutine.
package web
