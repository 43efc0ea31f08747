// Package notify receives sd_notify(3) messages from services. They are datagrams to a Unix socket, whose path the service finds
// in the variable NOTIFY_SOCKET.
//
// Each service has its own socket, to which only its user and root can write. The kernel adds the credentials of the sending
// process to each datagram. The caller decides whether this process belongs to the service.
//
// Promises:
//
//   - A datagram stays in the socket until the Hub has handled it. After a re-execution the new program handles the datagrams
//     that the old program had not finished.
//   - The package never opens file descriptors that a datagram carries. The sender of BARRIER=1 sees its descriptor closed after
//     the Hub has handled all earlier datagrams.
//   - No sender can make the package wait, keep more than [MaxMessage] bytes, or read more than [datagramsPerPause] datagrams
//     per [pause].
//
// A [Hub] owns a goroutine for each socket, and none without a socket.
package notify
