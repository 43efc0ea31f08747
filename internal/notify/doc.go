// Package notify receives sd_notify(3) messages of services. These are datagrams to a Unix socket. The service finds the path
// of its socket in the variable NOTIFY_SOCKET.
//
// Each service has its own socket, to which only its user and root can write. The kernel adds the PID of the sender to each
// datagram. The caller decides whether that process belongs to the service.
//
// Promises:
//
//   - A datagram stays in the socket until the Hub has handled it. So after a re-execution, the new program handles what the
//     old one had not.
//   - The package never opens file descriptors that come with a datagram. When the sender of BARRIER=1 sees its descriptor closed,
//     the Hub has handled all earlier datagrams.
//   - No sender can make the package wait, keep more than [MaxMessage] bytes, or read more than [datagramsPerInterval]
//     datagrams per [readInterval].
//
// A [Hub] owns a goroutine for each socket.
package notify
