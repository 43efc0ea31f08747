// Package web is the status page of hinit, and /metrics. The server renders HTML that works without scripts. With scripts,
// server-sent events keep the page up to date. It is a client of the control API.
//
// Only permitted users can control hinit through it. A request needs a Unix socket or the token to change something, and a form is
// valid only with a secret of its page. Without a token, the page answers only requests that name this machine. Texts that an agent
// has chosen are escaped, and secrets of known shapes in them are hidden. Slow or too many readers do not delay others: they share
// one state, get the newest version when they read, and are cut off when they don't.
//
// [Server.Run] owns the goroutines that follow hinit. Each stream has the goroutine of its request, and one that makes its events.
package web
