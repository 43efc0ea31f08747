// Package notify receives the messages of services by sd_notify(3): datagrams on a Unix socket that the variable NOTIFY_SOCKET
// names.
//
// Each service has its own socket, which only its user and root can write to. The kernel adds credentials that name the process
// that sent a datagram. The caller decides whether that process belongs to the service.
//
// Promises:
//
//   - A datagram is removed from the socket only after it has been handled. After re-execution the new program handles the datagrams that the old
//     one had not finished.
//   - Descriptors in a datagram are never opened. The sender of BARRIER=1 sees its descriptor closed after all earlier datagrams have been
//     handled.
//   - No sender can make the package wait, keep more than [MaxMessage] bytes, or read more than [burst] datagrams per [pause].
//
// A [Hub] owns a goroutine for each socket. Without a socket it owns none.
package notify
