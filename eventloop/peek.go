//go:build linux

package eventloop

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Peek reports whether the socket has something to be read: bytes, its end or
// an error. Epoll says so too, but for a conn that was parked on another loop
// that loop has to come round to it first.
func (c *Conn) Peek() bool {
	var b [1]byte
	_, _, err := unix.Recvfrom(int(c.fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return !errors.Is(err, unix.EAGAIN)
}
