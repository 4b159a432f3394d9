//go:build linux

package eventloop

import (
	"fmt"
	"io"
	"syscall"

	"golang.org/x/sys/unix"
)

// dispatch handles one event of epoll.
func (l *Loop) dispatch(fd int, gen, events uint32) {
	c := conns.get(fd)
	if c == nil {
		if f := l.watches[int32(fd)]; f != nil {
			f()
			l.flushDirty()
		}
		return // else the eventfd, or closed earlier in this turn
	}
	w := c.word.Load()
	if w.generation() != gen {
		return // about an earlier use of the descriptor
	}
	switch w.state() {
	case owned:
		l.handle(c, events)
	case parked:
		if !c.word.CompareAndSwap(w, w.with(owned, l.id)) {
			return // claimed at this moment; the event comes again
		}
		l.reschedule(c)
		calls := l.calls
		l.handle(c, events)
		if l.calls == calls && l.mine(c) {
			// Nothing for the handler, a session ticket for instance. But while
			// the loop had the conn somebody's claim may have failed: the
			// handler gives it back as it does after any other event.
			l.deliver(c, c.keep.bytes(), c.keep)
		}
	case claimed:
		l.mute(c, w)
	case closed:
	}
}

func (l *Loop) handle(c *Conn, events uint32) {
	if events&unix.EPOLLOUT != 0 {
		l.drain(c)
	}
	if events&^unix.EPOLLOUT == 0 {
		return
	}
	if c.flags&(flagPaused|flagFull) == 0 {
		l.readable(c)
		return
	}
	if events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		l.diedPaused(c)
		return
	}
	l.updateInterest(c) // the pause had not been told to epoll yet
}

// readable reads while the socket fills the buffer, up to MaxReads times. After
// a short read the socket is empty, or epoll reports it again.
func (l *Loop) readable(c *Conn) {
	for range l.cfg.MaxReads {
		if !l.readOnce(c) || c.flags&(flagPaused|flagFull) != 0 {
			return
		}
	}
}

// readOnce reports whether there may be more to read and c is still the loop's.
func (l *Loop) readOnce(c *Conn) bool {
	if c.tls != nil {
		return l.readTLS(c)
	}
	if k := c.keep.len(); k > len(l.rbuf)/2 {
		// Too much to move in front of the new bytes: they go behind it.
		room := min(len(l.rbuf), l.cfg.MaxRemainder-k)
		if room <= 0 {
			l.full(c)
			return false
		}
		n, e := sysRead(c.fd, l.rbuf[:room])
		if n == 0 {
			l.readEnded(c, e)
			return false
		}
		c.keep = c.keep.append(l.rbuf[:n])
		return l.deliver(c, c.keep.bytes(), c.keep) && n == room
	}
	k := copy(l.rbuf, c.keep.bytes())
	n, e := sysRead(c.fd, l.rbuf[k:])
	if n == 0 {
		l.readEnded(c, e)
		return false
	}
	k += n
	return l.deliver(c, l.rbuf[:k], nil) && k == len(l.rbuf)
}

// readEnded handles a read without bytes.
func (l *Loop) readEnded(c *Conn, e syscall.Errno) {
	switch e {
	case 0:
		l.end(c, io.EOF)
	case unix.EAGAIN:
	default:
		l.end(c, e)
	}
}

// full stops reading until the handler has consumed something.
func (l *Loop) full(c *Conn) {
	c.flags |= flagFull
	l.updateInterest(c)
}

// diedPaused handles a socket that is dead while its reading is paused. Epoll
// reports that for ever, so it cannot wait. An error ends the conn now. So does
// an orderly end if nothing is left to deliver; else the conn leaves epoll until
// reading resumes.
func (l *Loop) diedPaused(c *Conn) {
	errno, err := unix.GetsockoptInt(int(c.fd), unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && errno != 0 {
		l.end(c, syscall.Errno(errno))
		return
	}
	unread, err := unix.IoctlGetInt(int(c.fd), unix.TIOCINQ)
	if err == nil && c.flags&flagWErr == 0 && (unread > 0 || c.keep != nil) {
		c.flags |= flagHungUp
		l.ctl(unix.EPOLL_CTL_DEL, c.fd, 0, 0)
		return
	}
	l.end(c, io.EOF)
}

// redeliver offers what is kept again.
func (l *Loop) redeliver(c *Conn) {
	if c.keep != nil {
		l.deliver(c, c.keep.bytes(), c.keep)
	}
}

// deliver calls the handler with p, flushes what it wrote and keeps the rest.
// keep is the conn's own buffer if p is in it. False means that c has left the
// loop.
func (l *Loop) deliver(c *Conn, p []byte, keep *keepBuf) bool {
	l.cur.c, l.cur.p, l.cur.off, l.cur.keep, l.cur.left = c, p, 0, keep, false
	l.calls++
	n := c.h.Received(c, p)
	l.flushDirty()
	if l.cur.left {
		l.cur.keep.free()
		l.cur.p, l.cur.keep = nil, nil
		return l.mine(c) && c.flags&flagEnding == 0 // it may be back already
	}
	if n < 0 || l.cur.off+n > len(p) {
		panic(fmt.Sprintf("bug: handler consumed %d of %d bytes", l.cur.off+n, len(p)))
	}
	l.cur.off += n
	l.keepRest(c, false)
	l.cur.c, l.cur.p, l.cur.keep = nil, nil, nil
	return true
}

// keepRest stores what the running delivery has not consumed. If c is leaving
// while p is in its buffer, that buffer stays valid until the call is over and
// the rest moves to another one.
func (l *Loop) keepRest(c *Conn, leaving bool) {
	rest := l.cur.p[l.cur.off:]
	switch {
	case l.cur.keep != nil && leaving:
		c.keep = nil
		if len(rest) > 0 {
			c.keep = c.keep.append(rest)
		}
	case len(rest) == 0:
		c.keep.free()
		c.keep = nil
	case l.cur.keep != nil:
		c.keep.r += l.cur.off
	default:
		if c.keep != nil {
			c.keep.r, c.keep.w = 0, 0
		}
		c.keep = c.keep.append(rest)
	}
	switch {
	case l.cur.off == 0 && len(rest) >= l.cfg.MaxRemainder:
		c.flags |= flagFull // told to epoll when more comes
	case c.flags&flagFull != 0:
		c.flags &^= flagFull
		l.updateInterest(c)
	}
}
