// Package web is the status page of hinit: server-rendered HTML that works without scripts, kept live by server-sent events where
// they run, and /metrics. It is a client of the control API.
//
// It promises that only permitted users control hinit through it. A request needs a Unix socket or the token to change something,
// and a form counts only with a secret of its page. Without a token the page answers to names of this machine alone. Texts that
// an agent has chosen are escaped, secrets of known shapes in them hidden. Slow or too many readers cost others nothing. They
// share one state, get the newest when they read, and are cut off when they don't.
//
// [Server.Run] owns the goroutines that follow hinit; each stream owns the one of its request.
package web
