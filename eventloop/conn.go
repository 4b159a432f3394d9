//go:build linux

package eventloop

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// Handler is called on the loop that owns the conn. It may do anything to its
// own and other conns of that loop from within a call, including Close, Park,
// GiveTo and Detach of the conn it is called for.
type Handler interface {
	// Received gets the kept remainder followed by new bytes (none at all after
	// an event on a parked conn that brought none) and returns how many it is
	// done with; the rest is kept and comes again in front of the
	// next bytes. p is valid until the return. A call that took the conn away
	// from the loop settles the rest itself, see Conn.Consume; its return value
	// is ignored.
	Received(c *Conn, p []byte) (consumed int)
	// Drained says that the backlog is below LowWater after it had reached
	// HighWater.
	Drained(c *Conn)
	// Ended is the last call for this conn: io.EOF is an orderly end by the
	// peer. The loop closes the descriptor afterwards.
	Ended(c *Conn, err error)
}

type flags uint16

const (
	flagPaused  flags = 1 << iota // PauseRead
	flagFull                      // the remainder is at its bound and nothing was consumed
	flagDeliver                   // scheduled: deliver what is kept
	flagDrained                   // scheduled: call Drained, if the backlog still is low
	flagBroken                    // scheduled: end with werr
	flagHigh                      // the backlog has reached HighWater and not been below LowWater since
	flagNoWrite                   // writing is over: CloseWrite, an error, or the end
	flagShut                      // CloseWrite waits for the backlog
	flagWErr                      // a write has failed with werr
	flagEnding                    // Ended is running
	flagFresh                     // a TLS conn whose handshake may have read ahead
	flagHungUp                    // off epoll: dead, and bytes are left for when reading resumes
)

const flagsScheduled = flagDeliver | flagDrained | flagBroken

// Conn is a socket on a loop. It holds no buffer while it has nothing unsent
// or unconsumed.
type Conn struct {
	word atomicWord
	loop atomic.Pointer[Loop] // where it is registered; nil on its way between two loops
	h    Handler
	tls  *TLS     // nil = plain
	keep *keepBuf // delivered and not consumed; nil = nothing
	out  backlog

	fd     int32
	pend   int32  // index+1 into the loop's pend; 0 = nothing to flush
	events uint32 // what epoll waits for
	flags  flags
	werr   uint16 // errno of the failed write
}

// Attach registers a connected non-blocking socket and takes ownership of the
// descriptor, of which there must be no duplicate: epoll would go on reporting
// it after Close. t is nil for a plain conn, else what a handshake returned. On
// an error the descriptor is still the caller's.
func (l *Loop) Attach(fd int, h Handler, t *TLS) (*Conn, error) {
	if l.ended {
		return nil, ErrLoopStopped
	}
	c := &Conn{h: h, fd: int32(fd), events: unix.EPOLLIN}
	gen := nextGeneration()
	c.loop.Store(l)
	c.word.Store(makeWord(gen, l.id, owned))
	if err := conns.set(fd, c); err != nil {
		return nil, err
	}
	if e := l.ctl(unix.EPOLL_CTL_ADD, c.fd, c.events, gen); e != 0 {
		conns.clear(fd)
		return nil, fmt.Errorf("add descriptor %d to epoll: %w", fd, e)
	}
	if t != nil {
		l.attachTLS(c, t)
	}
	return c, nil
}

// FD is the descriptor, for socket options. It is valid until the conn ends.
func (c *Conn) FD() int { return int(c.fd) }

// Loop is where the conn is registered; nil between GiveTo and Adopt.
func (c *Conn) Loop() *Loop { return c.loop.Load() }

// Handler is what is called for this conn.
func (c *Conn) Handler() Handler { return c.h }

// SetHandler replaces the handler, from the next call on.
func (c *Conn) SetHandler(h Handler) { c.h = h }

// Closed reports whether the conn is gone: closed, detached or ended.
func (c *Conn) Closed() bool { return c.word.Load().state() == closed }

// PauseRead stops deliveries. The kernel is told only if the peer sends more,
// so a short pause costs nothing. While paused, a reset by the peer is still
// noticed; its orderly end is not.
func (c *Conn) PauseRead() {
	if _, ok := c.mustOwn("PauseRead"); ok {
		c.flags |= flagPaused
		c.flags &^= flagDeliver
	}
}

// Paused reports whether PauseRead is in force.
func (c *Conn) Paused() bool { return c.flags&flagPaused != 0 }

// ResumeRead undoes PauseRead and the pause of a full remainder. What is kept
// is delivered in this turn.
func (c *Conn) ResumeRead() {
	if _, ok := c.mustOwn("ResumeRead"); !ok || c.flags&(flagPaused|flagFull) == 0 {
		return
	}
	c.flags &^= flagPaused
	c.Redeliver()
}

// Redeliver schedules a delivery of the kept remainder, though nothing new has
// come. It does nothing if nothing is kept.
func (c *Conn) Redeliver() {
	if _, ok := c.mustOwn("Redeliver"); !ok {
		return
	}
	l := c.loop.Load()
	if c.keep != nil || l.cur.c == c || c.flags&flagFresh != 0 {
		l.schedule(c, flagDeliver)
	}
	l.updateInterest(c)
}

// Unread puts p in front of what is kept and schedules a delivery: for bytes
// that were read before the conn was attached. p is copied.
func (c *Conn) Unread(p []byte) {
	if _, ok := c.mustOwn("Unread"); !ok || len(p) == 0 {
		return
	}
	l := c.loop.Load()
	if l.cur.c == c {
		panic("bug: Unread inside of Received of the same conn")
	}
	old := c.keep
	c.keep = (*keepBuf)(nil).append(p)
	if old != nil {
		c.keep = c.keep.append(old.bytes())
		old.free()
	}
	l.schedule(c, flagDeliver)
}

// Consume tells, inside of Received, that n more bytes of p are done with. What
// Received returns counts from there. Needed before Park, GiveTo and Detach of
// the same conn, which keep or hand over the rest.
func (c *Conn) Consume(n int) {
	l := c.loop.Load()
	if l == nil || l.cur.c != c || n < 0 || l.cur.off+n > len(l.cur.p) {
		panic(fmt.Sprintf("bug: Consume(%d) outside of a delivery or beyond it", n))
	}
	l.cur.off += n
}

// Kept is the number of bytes that were delivered and not consumed.
func (c *Conn) Kept() int { return c.keep.len() }

// Close sends what the socket takes at once and closes it. There is no Ended
// call. Closing again does nothing.
func (c *Conn) Close() {
	if _, ok := c.mustOwn("Close"); !ok {
		return
	}
	l := c.loop.Load()
	l.leave(c)
	if c.tls != nil {
		l.closeNotify(c)
	}
	l.release(c)
	unix.Close(int(c.fd))
}

// Detach takes the descriptor out of the loop without closing it, and copies
// what was delivered and not consumed. The conn is over; there is no Ended
// call. Bytes that the socket did not take would be missing from the stream, so
// if there are any the socket is shut down and its next user sees that.
// Detaching a TLS conn is DetachConn's.
func (c *Conn) Detach() (fd int, rest []byte) {
	if c.tls != nil {
		panic("bug: Detach of a TLS conn, use DetachConn")
	}
	if _, ok := c.mustOwn("Detach"); !ok {
		return -1, nil
	}
	l := c.loop.Load()
	l.leave(c)
	rest = append(rest, c.keep.bytes()...)
	if c.out.size > 0 || c.flags&flagWErr != 0 {
		_ = unix.Shutdown(int(c.fd), unix.SHUT_RDWR)
	}
	l.ctl(unix.EPOLL_CTL_DEL, c.fd, 0, 0)
	l.release(c)
	return int(c.fd), rest
}

// leave settles everything that the loop holds for c, before c stops being the
// loop's. Buffers that the running delivery uses stay until it is over.
func (l *Loop) leave(c *Conn) {
	if l.cur.c == c {
		l.flushDirty() // others may have written parts of p too
		l.keepRest(c, true)
		l.cur.c, l.cur.left = nil, true
		return
	}
	l.flushConn(c)
}

// release ends the conn for the process; the descriptor is left.
func (l *Loop) release(c *Conn) {
	w := c.word.Load()
	l.dropPending(c)
	c.freeBuffers()
	c.flags |= flagNoWrite
	conns.clear(int(c.fd))
	c.word.Store(w.with(closed, w.loop()))
}

func (c *Conn) freeBuffers() {
	c.keep.free()
	c.keep = nil
	c.out.drop()
}

// end calls Ended and closes.
func (l *Loop) end(c *Conn, err error) {
	c.flags |= flagEnding | flagNoWrite
	l.dropPending(c)
	if c.flags&flagWErr != 0 && errors.Is(err, io.EOF) {
		err = syscall.Errno(c.werr) // the earlier of the two, and the cause
	}
	l.calls++
	c.h.Ended(c, err)
	l.flushDirty()
	c.Close()
}

// wanted is what epoll should wait for.
func (c *Conn) wanted() uint32 {
	var ev uint32
	if c.flags&(flagPaused|flagFull) == 0 {
		ev |= unix.EPOLLIN
	}
	if c.out.size > 0 {
		ev |= unix.EPOLLOUT
	}
	return ev
}

// updateInterest tells epoll what to wait for, if that has changed. A pause
// alone does not come here until the peer has sent something.
func (l *Loop) updateInterest(c *Conn) {
	want := c.wanted()
	if c.flags&flagHungUp != 0 {
		if want&unix.EPOLLIN == 0 {
			return
		}
		c.flags &^= flagHungUp
		c.events = want
		l.ctl(unix.EPOLL_CTL_ADD, c.fd, want, c.word.Load().generation())
		return
	}
	if want != c.events {
		c.events = want
		l.ctl(unix.EPOLL_CTL_MOD, c.fd, want, c.word.Load().generation())
	}
}

// schedule makes runReady look at c for the given reason.
func (l *Loop) schedule(c *Conn, why flags) {
	if c.flags&why == why {
		return
	}
	if c.flags&flagsScheduled == 0 {
		l.ready = append(l.ready, c)
	}
	c.flags |= why
}

// reschedule takes over what was scheduled when c was given up: runReady passed
// over it then, or c was on another loop.
func (l *Loop) reschedule(c *Conn) {
	if c.flags&flagsScheduled != 0 {
		l.ready = append(l.ready, c)
	}
}

// runReady makes the scheduled calls. What they schedule is for the next turn.
// A conn that has left the loop since is skipped: its flags went with it.
func (l *Loop) runReady() {
	if len(l.ready) == 0 {
		return
	}
	batch := l.ready
	l.ready = l.spare[:0]
	for _, c := range batch {
		l.runScheduled(c)
	}
	clear(batch)
	l.spare = batch[:0]
}

func (l *Loop) mine(c *Conn) bool {
	w := c.word.Load()
	return w.state() == owned && w.loop() == l.id && c.loop.Load() == l
}

func (l *Loop) runScheduled(c *Conn) {
	if !l.mine(c) {
		return
	}
	why := c.flags & flagsScheduled
	c.flags &^= why
	if why&flagBroken != 0 {
		l.end(c, syscall.Errno(c.werr))
		return
	}
	if why&flagDrained != 0 && c.flags&flagHigh == 0 {
		l.calls++
		c.h.Drained(c)
		l.flushDirty()
		if !l.mine(c) {
			return
		}
	}
	if why&flagDeliver != 0 {
		if c.flags&flagFresh != 0 {
			l.readFresh(c)
			return
		}
		l.redeliver(c)
	}
}
