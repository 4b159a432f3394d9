//go:build linux

package eventloop

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls of the hot path are raw: the descriptors never block, so
// telling Go's scheduler about each call would cost more than it gives.
// MSG_NOSIGNAL keeps the kernel from raising SIGPIPE; Go would survive the
// signal, but it is not free.

func sysRead(fd int32, p []byte) (int, syscall.Errno) {
	for {
		n, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), 0, 0, 0)
		if e == 0 {
			return int(n), 0
		}
		if e != unix.EINTR {
			return 0, e
		}
	}
}

func sysWrite(fd int32, p []byte) (int, syscall.Errno) {
	for {
		n, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), unix.MSG_NOSIGNAL, 0, 0)
		if e == 0 {
			return int(n), 0
		}
		if e != unix.EINTR {
			return 0, e
		}
	}
}

// writev sends segs in one call. The header and vector are the loop's, so that
// nothing escapes per call.
func (l *Loop) writev(fd int32, segs [][]byte) (int, syscall.Errno) {
	if len(segs) == 1 {
		return sysWrite(fd, segs[0])
	}
	for i, s := range segs {
		l.iov[i].Base = unsafe.SliceData(s)
		l.iov[i].SetLen(len(s))
	}
	l.msg.Iov = &l.iov[0]
	l.msg.SetIovlen(len(segs))
	defer clear(l.iov[:len(segs)])
	for {
		n, _, e := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&l.msg)), unix.MSG_NOSIGNAL)
		if e == 0 {
			return int(n), 0
		}
		if e != unix.EINTR {
			return 0, e
		}
	}
}

// ctl changes the registration of fd with this loop. It is the one thing that
// other goroutines do to a loop's epoll (they remove what they claimed), hence
// the lock, which also keeps the descriptor's number from being reused under
// them.
func (l *Loop) ctl(op int, fd int32, events, gen uint32) syscall.Errno {
	l.epoll.Lock()
	defer l.epoll.Unlock()
	if l.epoll.closed {
		return unix.EBADF
	}
	ev := unix.EpollEvent{Events: events, Fd: fd, Pad: int32(gen)}
	_, _, e := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(l.epoll.fd), uintptr(op), uintptr(fd), uintptr(unsafe.Pointer(&ev)), 0, 0)
	return e
}

// poll fetches what is ready without waiting.
func (l *Loop) poll() int {
	n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(l.epoll.fd), uintptr(unsafe.Pointer(&l.events[0])), uintptr(len(l.events)), 0, 0, 0)
	switch e {
	case 0:
		return int(n)
	case unix.EINTR:
		return 0
	}
	panic("bug: epoll_pwait: " + e.Error())
}

// sysWake makes an eventfd readable.
func sysWake(fd int) {
	one := uint64(1)
	for {
		_, _, e := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&one)), unsafe.Sizeof(one))
		if e != unix.EINTR {
			return // EAGAIN would need 2^64 wake-ups
		}
	}
}
