// Package web serves the status page of hinit, and /metrics. The server renders HTML that works without scripts. With scripts,
// server-sent events keep the page up to date. The package is a client of the control API.
//
// Only permitted users can control hinit through the page. A request can change something only if it came over a Unix socket or
// has the token. A form must come from a page of this server. Requests over a Unix socket, and all requests if no token is
// configured, must use a host name of this machine. Texts that an agent has chosen are escaped, and secrets of known shapes in
// them are hidden.
//
// Slow or very many readers do not delay other readers. All readers share one state, and each gets the newest version. A reader
// that stops reading is disconnected.
//
// [Server.Run] owns the goroutines that follow hinit. Each stream of server-sent events has the goroutine of its request, and a
// second goroutine that produces its events.
package web
