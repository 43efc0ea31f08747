// Package notify takes what services tell of themselves by sd_notify(3): datagrams on a Unix socket that the variable NOTIFY_SOCKET names.
//
// Each service has a socket of its own, which only its user and root can write to. The credentials that the kernel adds name the
// process that wrote a datagram. The caller decides whether that process belongs to the service.
//
// Promises:
//
//   - A datagram is removed from the socket only after it was taken. The next image of a re-execution takes again what this one had
//     not finished.
//   - A descriptor that comes with a datagram is never opened. Its sender sees it closed when everything before it was taken
//     (BARRIER=1).
//   - No sender can make the package wait, keep more than [MaxMessage] bytes, or take more than [burst] datagrams each [pause].
//
// A [Hub] owns a goroutine for each socket. Without a socket it owns none.
package notify
