// Package web tests hinit-web as it is installed, beside a real hinit: the page, a real Prometheus that scrapes it, and logs that
// are sent to receivers that fail. It has no code of its own and owns no goroutine.
package web
