// Package web tests the installed hinit-web together with a real hinit: the page, a real Prometheus that scrapes it, and logs
// that are sent to failing receivers. It contains only tests and owns no goroutine.
package web
