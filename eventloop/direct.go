//go:build linux

package eventloop

import (
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A loop that waits through Go's netpoller pays for it at each wait: an empty
// poll before it parks, the scheduler's own polls, and often the wake-up of a
// second thread that finds nothing to do. A busy loop therefore waits in the
// kernel itself, in a raw system call that keeps its processor: one epoll_pwait
// per turn. That is only right while it is busy and while the process has a
// processor to spare for everything else (Config.DirectWait); so
//
//   - it begins after busyWaits waits in a row that were short, and
//   - it ends with the first signal: the runtime interrupts a goroutine that has
//     kept its processor for 10 ms, and to stop the world. An idle loop thus
//     parks after one interruption and is not interrupted again.
//
// While the loop waits directly, its epoll must not be in the netpoller, where
// each event would wake another thread. What the netpoller holds is the gate, an
// epoll of its own that the loop's epoll is a member of or not.
const (
	busyWaits = 16
	shortWait = int64(2 * time.Millisecond)
	// directHold is how long a loop that waits directly keeps its processor
	// before it lets the scheduler look: less than the 10 ms after which the
	// runtime would interrupt it.
	directHold = int64(5 * time.Millisecond)
)

// openGate makes what the netpoller waits for.
func (l *Loop) openGate() error {
	fd := l.epoll.fd
	if l.cfg.DirectWait {
		gate, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
		if err != nil {
			return fmt.Errorf("create gate epoll: %w", err)
		}
		l.gate = gate
		if err := l.gateCtl(unix.EPOLL_CTL_ADD); err != nil {
			unix.Close(gate)
			return err
		}
		fd = gate
	}
	// os.NewFile puts only non-blocking descriptors into the netpoller.
	if err := unix.SetNonblock(fd, true); err != nil {
		return fmt.Errorf("make epoll non-blocking: %w", err)
	}
	l.file = os.NewFile(uintptr(fd), "epoll")
	return nil
}

func (l *Loop) gateCtl(op int) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(l.epoll.fd)}
	if err := unix.EpollCtl(l.gate, op, l.epoll.fd, &ev); err != nil {
		return fmt.Errorf("gate epoll: %w", err)
	}
	return nil
}

// judgeWait follows each wait through the netpoller; since is when it began.
func (l *Loop) judgeWait(since int64) {
	if !l.cfg.DirectWait {
		return
	}
	if l.now-since > shortWait {
		l.busy = 0
		return
	}
	if l.busy++; l.busy >= busyWaits {
		l.busy = 0
		if err := l.gateCtl(unix.EPOLL_CTL_DEL); err == nil {
			l.direct = true
		}
	}
}

// waitDirect blocks in epoll_pwait until there is an event, a wake-up, the
// earliest timer, or a signal.
func (l *Loop) waitDirect() {
	l.fetched = 0
	l.parked.Store(true)
	if l.mail.n.Load() > 0 || l.stop.Load() {
		l.parked.Store(false)
		l.fetched = l.poll()
		return
	}
	timeout := -1
	if l.timers.len() > 0 {
		timeout = int(max(l.timers.h[0].key-Now()+timerGrain, 0) / timerGrain)
	}
	n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(l.epoll.fd), uintptr(unsafe.Pointer(&l.events[0])), uintptr(len(l.events)), uintptr(timeout), 0, 0)
	l.parked.Store(false)
	switch e {
	case 0:
		l.fetched = int(n)
	case unix.EINTR:
		if err := l.gateCtl(unix.EPOLL_CTL_ADD); err != nil {
			panic("bug: " + err.Error())
		}
		l.direct = false
	default:
		panic("bug: epoll_pwait: " + e.Error())
	}
}
