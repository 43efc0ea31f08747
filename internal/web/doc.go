// Package web is the status page of hinit: server-rendered HTML that works without scripts, kept live by server-sent events where
// they run, and /metrics. It is a client of the control API.
//
// It promises that whoever may not control hinit through it can't: only a Unix socket or the token lets a request change something,
// and a form counts only with a secret of its page. Without a token it answers to names of this machine alone. Texts that an agent has
// chosen are escaped, secrets of known shapes in them hidden. Readers that are slow, or too many, cost others nothing: they share one
// state, get what is newest when they take it, and are cut off when they take nothing.
//
// [Server.Run] owns the goroutines that follow hinit; each stream owns the one of its request.
package web
