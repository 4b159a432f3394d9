//go:build linux

package eventloop

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// connState is where a conn is in its life, see the diagram in the package
// comment.
type connState uint8

const (
	parked  connState = iota + 1 // registered, nobody's
	claimed                      // somebody's, on its way to the loop in the word
	owned                        // that loop's
	closed                       // terminal: closed, detached or discarded
)

func (s connState) String() string {
	return [...]string{"?", "parked", "claimed", "owned", "closed"}[s]
}

// word is generation<<32 | loop<<8 | state.
type word uint64

func makeWord(gen uint32, loop int, s connState) word {
	return word(gen)<<32 | word(loop)<<8 | word(s)
}

func (w word) generation() uint32 { return uint32(w >> 32) }
func (w word) loop() int          { return int(w >> 8 & maxID) }
func (w word) state() connState   { return connState(w & 0xff) }

// with keeps the generation.
func (w word) with(s connState, loop int) word { return makeWord(w.generation(), loop, s) }

func (w word) String() string {
	return fmt.Sprintf("%v, loop %d, generation %d", w.state(), w.loop(), w.generation())
}

type atomicWord struct{ v atomic.Uint64 }

func (a *atomicWord) Load() word   { return word(a.v.Load()) }
func (a *atomicWord) Store(w word) { a.v.Store(uint64(w)) }
func (a *atomicWord) CompareAndSwap(from, to word) bool {
	return a.v.CompareAndSwap(uint64(from), uint64(to))
}

// mustOwn returns the word of an owned conn. False means that the conn is
// closed; anything else is a use of somebody else's conn.
func (c *Conn) mustOwn(what string) (word, bool) {
	w := c.word.Load()
	if w.state() == owned {
		return w, true
	}
	if w.state() == closed {
		return w, false
	}
	panic("bug: " + what + " on a conn that is " + w.String())
}

// Park gives the conn up to whoever claims it next. What was written goes out
// first. Reading is resumed, so that the end of the conn is noticed; until a
// TryClaim succeeds, an event makes the loop claim it and call the handler.
func (c *Conn) Park() {
	w, ok := c.mustOwn("Park")
	if !ok {
		return
	}
	if c.flags&flagEnding != 0 {
		panic("bug: Park of a conn that is ending")
	}
	l := c.loop.Load()
	l.leave(c)
	c.flags &^= flagPaused | flagFull
	l.updateInterest(c)
	c.word.Store(w.with(parked, w.loop()))
}

// TryClaim takes a parked conn for the loop with the given id, from any
// goroutine. After true the conn is the caller's alone, but it may only be
// passed to that loop, which must Adopt it before anything else, also when it
// is the loop the conn was parked on.
func (c *Conn) TryClaim(to int) bool {
	w := c.word.Load()
	return w.state() == parked && c.word.CompareAndSwap(w, w.with(claimed, to))
}

// Adopt makes a conn that was claimed for l, or given to it, its own, on l's
// goroutine. Bytes that arrived meanwhile are reported by the next wait. On an
// error the claim stands and the caller must Discard the conn.
func (l *Loop) Adopt(c *Conn) error {
	w := c.word.Load()
	from := c.loop.Load()
	if w.state() == owned && from == l {
		return nil
	}
	if w.state() != claimed || w.loop() != l.id {
		panic(fmt.Sprintf("bug: loop %d adopts a conn that is %v", l.id, w))
	}
	if l.ended {
		return ErrLoopStopped
	}
	if from == l {
		if l.unmute(c) {
			if e := l.ctl(unix.EPOLL_CTL_ADD, c.fd, c.events, w.generation()); e != 0 {
				return fmt.Errorf("add descriptor %d to epoll: %w", c.fd, e)
			}
		}
		c.word.Store(w.with(owned, l.id))
		l.reschedule(c)
		return nil
	}
	if from != nil {
		from.ctl(unix.EPOLL_CTL_DEL, c.fd, 0, 0) // ENOENT when an event has muted it
		c.loop.Store(nil)
	}
	gen := nextGeneration()
	c.flags &^= flagHungUp
	c.events = c.wanted()
	// The word first: an event must find the new generation.
	c.loop.Store(l)
	c.word.Store(makeWord(gen, l.id, owned))
	if e := l.ctl(unix.EPOLL_CTL_ADD, c.fd, c.events, gen); e != 0 {
		c.loop.Store(nil)
		c.word.Store(makeWord(gen, l.id, claimed))
		return fmt.Errorf("add descriptor %d to epoll: %w", c.fd, e)
	}
	l.reschedule(c)
	return nil
}

// GiveTo hands the conn over to another loop, with everything it keeps: what
// was written goes out first. The caller posts it to that loop, which must
// Adopt it; if it has ended, Discard is left.
func (c *Conn) GiveTo(loop int) {
	w, ok := c.mustOwn("GiveTo")
	if !ok {
		return
	}
	if c.flags&flagEnding != 0 {
		panic("bug: GiveTo of a conn that is ending")
	}
	l := c.loop.Load()
	l.leave(c)
	l.ctl(unix.EPOLL_CTL_DEL, c.fd, 0, 0)
	c.loop.Store(nil)
	c.word.Store(w.with(claimed, loop))
}

// Discard closes a conn that is claimed and was not adopted, from the
// goroutine that holds the claim: the way out when the loop it was meant for
// has ended. No Ended call follows.
func (c *Conn) Discard() {
	w := c.word.Load()
	if w.state() == closed {
		return
	}
	if w.state() != claimed {
		panic("bug: Discard of a conn that is " + w.String())
	}
	if from := c.loop.Load(); from != nil {
		from.ctl(unix.EPOLL_CTL_DEL, c.fd, 0, 0)
	}
	c.word.Store(w.with(closed, w.loop()))
	c.freeBuffers()
	conns.clear(int(c.fd))
	unix.Close(int(c.fd))
}

// mute takes a claimed conn off epoll: its new owner has not adopted it yet,
// and level-triggered events would spin until it does. Only the epoll is
// touched, the conn is not ours. Adopt registers it anew.
func (l *Loop) mute(c *Conn, w word) {
	l.ctl(unix.EPOLL_CTL_DEL, c.fd, 0, 0)
	if w.loop() == l.id && c.loop.Load() == l {
		l.muted = append(l.muted, c)
	}
}

func (l *Loop) unmute(c *Conn) bool {
	for i, m := range l.muted {
		if m == c {
			last := len(l.muted) - 1
			l.muted[i] = l.muted[last]
			l.muted[last] = nil
			l.muted = l.muted[:last]
			return true
		}
	}
	return false
}
