//go:build linux

package eventloop

import (
	"net"
	"strconv"

	"golang.org/x/sys/unix"
)

// RemoteAddr is the address of the peer of a socket: a *net.TCPAddr, a
// *net.UnixAddr, or an empty *net.UnixAddr if the kernel does not tell.
func RemoteAddr(fd int) net.Addr {
	sa, err := unix.Getpeername(fd)
	return toAddr(sa, err)
}

// LocalAddr is the address of our end of a socket.
func LocalAddr(fd int) net.Addr {
	sa, err := unix.Getsockname(fd)
	return toAddr(sa, err)
}

func toAddr(sa unix.Sockaddr, err error) net.Addr {
	if err == nil {
		switch sa := sa.(type) {
		case *unix.SockaddrInet4:
			return &net.TCPAddr{IP: sa.Addr[:], Port: sa.Port}
		case *unix.SockaddrInet6:
			a := &net.TCPAddr{IP: sa.Addr[:], Port: sa.Port}
			if sa.ZoneId != 0 {
				a.Zone = strconv.FormatUint(uint64(sa.ZoneId), 10)
			}
			return a
		case *unix.SockaddrUnix:
			return &net.UnixAddr{Name: sa.Name, Net: "unix"}
		}
	}
	return &net.UnixAddr{Net: "unix"}
}
