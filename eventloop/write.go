//go:build linux

package eventloop

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	maxSegments = 16       // in one system call; more are sent early
	scratchSize = 64 << 10 // copies of small writes until the flush
	copyBelow   = 512      // a copy of fewer bytes is cheaper than a segment of its own
)

// pending is what one conn was given to write since the last flush.
type pending struct {
	c    *Conn // nil = flushed early or gone
	n    int
	size int
	segs [maxSegments][]byte
}

// Write queues p, which may be part of the bytes being delivered and must not
// change until the running call of the handler, task or timer returns: it is
// sent then, together with everything else written to this conn. What the
// socket does not take is copied. Write never fails: an error arrives as Ended.
func (c *Conn) Write(p []byte) {
	if _, ok := c.mustOwn("Write"); !ok || len(p) == 0 || c.flags&flagNoWrite != 0 {
		return
	}
	l := c.loop.Load()
	if c.pend == 0 {
		l.pendFor(c)
	}
	pd := &l.pend[c.pend-1]
	if !l.join(pd, p) {
		if pd.n == maxSegments {
			l.flush(pd)
			if c.flags&flagNoWrite != 0 {
				return
			}
		}
		if len(p) < copyBelow && len(l.scratch)+len(p) <= cap(l.scratch) && !within(l.cur.p, p) {
			from := len(l.scratch)
			l.scratch = append(l.scratch, p...)
			p = l.scratch[from:]
			if l.join(pd, p) {
				p = nil
			}
		}
		if p != nil {
			pd.segs[pd.n] = p
			pd.n++
			pd.size += len(p)
		}
	}
	if c.out.size+pd.size >= l.cfg.HighWater {
		c.flags |= flagHigh
	}
}

// Backlog is the number of bytes that the kernel has not taken yet, including
// those that wait for the end of the running call.
func (c *Conn) Backlog() int {
	n := c.out.size
	if c.pend != 0 {
		n += c.loop.Load().pend[c.pend-1].size
	}
	return n
}

// Congested reports whether Backlog has reached HighWater and not been below
// LowWater since. While it is true a call of Drained is to come.
func (c *Conn) Congested() bool { return c.flags&flagHigh != 0 }

// CloseWrite ends the stream to the peer once the backlog is gone; reading goes
// on until the peer's end. Later writes are dropped.
func (c *Conn) CloseWrite() {
	if _, ok := c.mustOwn("CloseWrite"); !ok || c.flags&flagNoWrite != 0 {
		return
	}
	l := c.loop.Load()
	l.flushConn(c)
	if c.tls != nil {
		l.closeNotify(c)
	}
	c.flags |= flagNoWrite
	if c.out.size > 0 {
		c.flags |= flagShut
		return
	}
	_ = unix.Shutdown(int(c.fd), unix.SHUT_WR) // ENOTCONN: the read will tell
}

func ptr(p []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(p))) }

// within reports whether part lies in whole.
func within(whole, part []byte) bool {
	return len(whole) > 0 && ptr(part) >= ptr(whole) && ptr(part)+uintptr(len(part)) <= ptr(whole)+uintptr(len(whole))
}

// join appends p to the last segment without copying if it follows it in
// memory: in one slice, or in the bytes being delivered.
func (l *Loop) join(pd *pending, p []byte) bool {
	if pd.n == 0 {
		return false
	}
	last := &pd.segs[pd.n-1]
	if ptr(*last)+uintptr(len(*last)) != ptr(p) {
		return false
	}
	switch total := len(*last) + len(p); {
	case cap(*last) >= total:
		*last = (*last)[:total]
	case within(l.cur.p, *last) && within(l.cur.p, p):
		from := int(ptr(*last) - ptr(l.cur.p))
		*last = l.cur.p[from : from+total]
	default:
		return false // adjacent by chance: two allocations
	}
	pd.size += len(p)
	return true
}

func (l *Loop) pendFor(c *Conn) {
	n := len(l.pend)
	if n < cap(l.pend) {
		l.pend = l.pend[:n+1]
	} else {
		l.pend = append(l.pend, pending{})
	}
	l.pend[n].c = c
	c.pend = int32(n + 1)
}

// dropPending forgets what waits for the flush.
func (l *Loop) dropPending(c *Conn) {
	if c.pend == 0 {
		return
	}
	pd := &l.pend[c.pend-1]
	clear(pd.segs[:pd.n])
	pd.c, pd.n, pd.size = nil, 0, 0
	c.pend = 0
}

// flushDirty sends what was written since the last call. It must be called
// before the bytes that were delivered are overwritten.
func (l *Loop) flushDirty() {
	if len(l.pend) == 0 {
		return
	}
	for i := range l.pend {
		if c := l.pend[i].c; c != nil {
			l.flushConn(c)
		}
	}
	l.pend = l.pend[:0]
	l.scratch = l.scratch[:0]
}

// flushConn sends what was written to c.
func (l *Loop) flushConn(c *Conn) {
	if c.pend == 0 {
		return
	}
	l.flush(&l.pend[c.pend-1])
	l.dropPending(c)
	l.checkDrained(c)
}

// flush sends the segments of pd and leaves it empty.
func (l *Loop) flush(pd *pending) {
	if pd.n == 0 {
		return
	}
	c, segs := pd.c, pd.segs[:pd.n]
	if c.tls != nil {
		l.sealAndSend(c, segs)
	} else {
		l.send(c, segs)
	}
	clear(pd.segs[:pd.n])
	pd.n, pd.size = 0, 0
}

// send gives segs to the socket and keeps a copy of what it does not take. It
// changes segs.
func (l *Loop) send(c *Conn, segs [][]byte) {
	if c.flags&flagWErr != 0 {
		return
	}
	if c.out.size == 0 {
		n, e := l.writev(c.fd, segs)
		if e != 0 && e != unix.EAGAIN {
			l.writeFailed(c, e)
			return
		}
		for len(segs) > 0 && n >= len(segs[0]) {
			n -= len(segs[0])
			segs = segs[1:]
		}
		if len(segs) == 0 {
			return
		}
		segs[0] = segs[0][n:]
	}
	for _, s := range segs {
		c.out.append(s)
	}
	l.updateInterest(c)
}

// drain sends from the backlog, when the socket takes bytes again: one system
// call, so that no conn holds up the others.
func (l *Loop) drain(c *Conn) {
	if c.out.size == 0 {
		l.updateInterest(c)
		return
	}
	segs := c.out.segments(l.segs[:0])
	n, e := l.writev(c.fd, segs)
	clear(l.segs[:len(segs)])
	if e != 0 {
		if e != unix.EAGAIN {
			l.writeFailed(c, e)
		}
		return
	}
	c.out.advance(n)
	l.checkDrained(c)
	if c.out.size > 0 {
		return
	}
	l.updateInterest(c)
	if c.flags&flagShut != 0 {
		c.flags &^= flagShut
		_ = unix.Shutdown(int(c.fd), unix.SHUT_WR)
	}
}

// checkDrained schedules the Drained call that Congested has promised.
func (l *Loop) checkDrained(c *Conn) {
	if c.flags&flagHigh != 0 && c.out.size < l.cfg.LowWater {
		c.flags &^= flagHigh
		l.schedule(c, flagDrained)
	}
}

// writeFailed notes that nothing more can be sent. A peer that has closed may
// have said why before that, so reading goes on to its end if it is not paused;
// every other error ends the conn in this turn.
func (l *Loop) writeFailed(c *Conn, e syscall.Errno) {
	c.flags |= flagNoWrite | flagWErr
	c.flags &^= flagShut
	c.werr = uint16(e)
	c.out.drop()
	l.updateInterest(c)
	gone := e == unix.EPIPE || e == unix.ECONNRESET
	if !gone || c.flags&(flagPaused|flagFull) != 0 {
		l.schedule(c, flagBroken)
	}
}
