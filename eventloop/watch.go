//go:build linux

package eventloop

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Watch calls f, on this loop, while the descriptor is readable: for listening
// sockets, which deliver no bytes. The descriptor stays the caller's, who calls
// Unwatch before closing it. Loop goroutine only.
func (l *Loop) Watch(fd int, f func()) error {
	if l.ended {
		return ErrLoopStopped
	}
	if e := l.ctl(unix.EPOLL_CTL_ADD, int32(fd), unix.EPOLLIN, 0); e != 0 {
		return fmt.Errorf("watch descriptor %d: %w", fd, e)
	}
	if l.watches == nil {
		l.watches = make(map[int32]func())
	}
	l.watches[int32(fd)] = f
	return nil
}

// Unwatch ends a Watch. Loop goroutine only.
func (l *Loop) Unwatch(fd int) {
	if l.watches[int32(fd)] == nil {
		return
	}
	delete(l.watches, int32(fd))
	l.ctl(unix.EPOLL_CTL_DEL, int32(fd), 0, 0)
}
