package connpool

import (
	"fmt"
	"math"
	"sync"
	"time"
)

// neverNS is an instant that does not come.
const neverNS = math.MaxInt64

// Arbiter owns the slots of one target. All methods may be called from any
// goroutine; those that take a *Conn only by the one that owns it.
//
// Lock order: registry.mu before mu.
type Arbiter[R Resource] struct {
	cfg Config

	registry registry[R]

	mu sync.Mutex // guards everything below; nothing slow runs under it

	closed   bool
	capacity int // as configured or resized
	maxIdle  int
	refused  int   // the server's word: no more slots than this ...
	until    int64 // ... until then; 0: nothing known
	lastNow  int64

	conns      []*Conn[R] // one per slot held, in no order
	n          tally
	lru        list[Conn[R]] // idle connections of all pools, longest idle first
	bequeathed list[Conn[R]] // draining, with an heir
	orphans    list[Conn[R]] // draining, without

	pools   []*UserPool[R]
	waits   list[UserPool[R]] // pools that have waiters
	needy   needy[R]          // pools that need a slot
	waiting int
	heirs   int // draining connections with an heir

	seq    uint64 // last arrival
	connID uint64

	connHand []int // per loop: where Tick goes on in conns
	poolHand int   // where Tick goes on in pools

	totals Totals
}

// New makes the arbiter of one target.
func New[R Resource](cfg Config) *Arbiter[R] {
	if cfg.Capacity < 1 {
		panic(fmt.Sprintf("bug: connpool capacity %d is not positive", cfg.Capacity))
	}
	cfg = cfg.withDefaults()
	a := &Arbiter[R]{
		cfg:      cfg,
		capacity: cfg.Capacity,
		maxIdle:  cfg.maxIdle(cfg.Capacity),
	}
	a.registry.byKey.Store(&map[Handle]*UserPool[R]{})
	return a
}

// Get borrows a connection of p. It returns one at once (Active, claimed for
// b.Loop), or nil and nil after it has queued w, or an error: *RefusedError,
// ErrClosed, or what the last dial failed with while the server is known to be
// down. p may be nil, which is what Pool answers when there are too many.
func (a *Arbiter[R]) Get(p *UserPool[R], w *Waiter[R], b Borrow, now int64, ops *[]Op[R]) (*Conn[R], error) {
	if p == nil {
		return nil, a.refusePool()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	// A pool that was forgotten is empty, and nothing idle can be claimed when
	// the arbiter is closed: both are left to the slow half.
	if c := p.takeIdle(b); c != nil {
		p.asked(now)
		return c, nil
	}
	return a.getSlow(p, w, b, now, ops)
}

// getSlow is the slow half of Get: p has no idle connection that could be
// claimed.
func (a *Arbiter[R]) getSlow(p *UserPool[R], w *Waiter[R], b Borrow, now int64, ops *[]Op[R]) (*Conn[R], error) {
	if w.queued {
		panic("bug: Get with a waiter that is queued")
	}
	forgotten := p.gone
	if forgotten {
		p = a.successor(p) // lets go of the lock meanwhile
	}
	switch {
	case a.closed:
		return nil, ErrClosed
	case p == nil:
		return nil, a.refusePoolLocked()
	}
	p.asked(now)
	if forgotten {
		if c := p.takeIdle(b); c != nil {
			return c, nil
		}
	}
	return nil, a.wait(p, w, b, now, ops)
}

// asked counts a Get.
func (p *UserPool[R]) asked(now int64) {
	p.arb.totals.Gets++
	p.totals.Gets++
	p.lastUsed = now
}

// wait queues w, if it may.
func (a *Arbiter[R]) wait(p *UserPool[R], w *Waiter[R], b Borrow, now int64, ops *[]Op[R]) error {
	a.refresh(now)
	p.refresh(now)
	if p.health == blocked && p.lastErr != nil && p.live() == 0 {
		p.totals.FailedFast++
		a.totals.FailedFast++
		return p.lastErr
	}
	if p.waiters.n >= a.cfg.MaxWaiters {
		p.totals.Refused++
		a.totals.Refused++
		a.dispatch(now, ops) // the back-off of those who wait may have just ended
		return &RefusedError{
			Key: p.key, What: "waiting borrows of this user",
			Value: p.waiters.n, Limit: a.cfg.MaxWaiters,
			InUse: a.n[Active], Capacity: a.capacity,
			Knob: "--connpool-max-waiters",
		}
	}
	p.totals.Waits++
	a.totals.Waits++
	p.enqueue(w, b, now)
	a.dispatch(now, ops)
	return nil
}

// Put takes back a clean Active connection from its borrower, who must not
// touch it afterwards: it has been given to a waiter (OpGrant), parked, or is to
// be terminated (OpClose), whichever is decided under the lock. Park is called
// here, by the pool.
func (a *Arbiter[R]) Put(c *Conn[R], now int64, ops *[]Op[R]) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.state != Active {
		panic(fmt.Sprintf("bug: Put of server connection %d, which is %v", c.id, c.state))
	}
	c.pool.lastUsed = now
	c.loop = c.res.Loop()
	if a.unweighed(c, now) {
		a.park(c, now)
		return
	}
	a.settle(c, now, ops)
}

// Unclaimed takes back an Idle connection that its own loop had claimed because
// of an event and found to be fine. Whoever missed it meanwhile is served now;
// otherwise it is parked again, at its old place.
func (a *Arbiter[R]) Unclaimed(c *Conn[R], now int64, ops *[]Op[R]) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.state != Idle {
		panic(fmt.Sprintf("bug: Unclaimed of server connection %d, which is %v", c.id, c.state))
	}
	a.settle(c, now, ops)
}

// settle finds the next use of a connection that the caller owns: Active (at
// its release), Idle (claimed by its loop) or Dialing (just dialled).
func (a *Arbiter[R]) settle(c *Conn[R], now int64, ops *[]Op[R]) {
	c.loop = c.res.Loop()
	p := c.pool
	switch decide(a.freed(c, now), a.cfg.SwitchAfter) {
	case keepIdle:
		a.park(c, now)
	case giveToWaiter:
		w := p.waiters.pop(c.loop, a.cfg.MaxSkips)
		p.removed()
		a.lend(c, w, ops)
	case closeForOther:
		a.totals.Switches++
		p.totals.Switches++
		a.retire(c, ops)
		a.dispatch(now, ops) // makes the other pool, the first in need, inherit
	case closeForGood:
		a.retire(c, ops)
		a.dispatch(now, ops)
	}
}

// unweighed reports that the snapshot would hold nothing to weigh, for which
// decide says keepIdle: the hot path does without taking it.
func (a *Arbiter[R]) unweighed(c *Conn[R], now int64) bool {
	return a.waiting == 0 && !a.closed && now < c.retireAt &&
		a.n[Idle] < a.maxIdle && len(a.conns)-a.n[Draining] <= a.capacity
}

// park makes c idle, or leaves it at its place when it is.
func (a *Arbiter[R]) park(c *Conn[R], now int64) {
	if c.state != Idle {
		c.idleSince = now
		c.setState(Idle)
		c.pool.idle.pushFront(&c.inPool)
		a.lru.pushBack(&c.inArbiter)
	}
	c.res.Park() // the last touch
}

// freed takes the snapshot that decide judges.
func (a *Arbiter[R]) freed(c *Conn[R], now int64) freed {
	p := c.pool
	idle := a.n[Idle]
	if c.state == Idle {
		idle--
	}
	f := freed{
		closing:  a.closed,
		expired:  now >= c.retireAt,
		over:     len(a.conns)-a.n[Draining] > a.capacity,
		idleFull: idle >= a.maxIdle,
		held:     time.Duration(now - c.openedAt),
	}
	if w := p.waiters.all.front(); w != nil {
		f.own = claim{p.waiters.n, w.seq, time.Duration(now - w.since), p.incoming()}
	}
	if o := a.needy.top(); o != nil && o != p {
		w := o.waiters.all.front()
		f.other = claim{o.waiters.n, w.seq, time.Duration(now - w.since), o.incoming()}
	}
	return f
}

// lend gives c to w, which has just been removed from its queue.
func (a *Arbiter[R]) lend(c *Conn[R], w *Waiter[R], ops *[]Op[R]) {
	if c.loop != w.borrow.Loop {
		c.pool.totals.CrossLoop++
		a.totals.CrossLoop++
	}
	c.pool.totals.Grants++
	a.totals.Grants++
	if c.state == Idle {
		a.unlinkIdle(c)
	}
	if c.state != Active {
		c.setState(Active)
	}
	c.borrow, c.loop = w.borrow, w.borrow.Loop
	*ops = append(*ops, Op[R]{Kind: OpGrant, Loop: w.borrow.Loop, Conn: c, Waiter: w, Pool: c.pool})
}

// retire starts the end of a connection that the caller owns or has claimed.
func (a *Arbiter[R]) retire(c *Conn[R], ops *[]Op[R]) {
	loop := c.res.Loop()
	a.drain(c)
	*ops = append(*ops, Op[R]{Kind: OpClose, Loop: loop, Conn: c, Pool: c.pool})
}

// drain moves c to Draining. Its slot has no heir yet.
func (a *Arbiter[R]) drain(c *Conn[R]) {
	if c.state == Idle {
		a.unlinkIdle(c)
	}
	wasDialing := c.state == Dialing
	c.setState(Draining)
	a.orphans.pushBack(&c.inArbiter)
	if wasDialing {
		c.pool.recount()
	}
}

// Drain begins the end of a connection that the caller owns: Active, Dialing,
// or Idle and claimed by its loop. The caller terminates it and answers Gone
// (or, for a dial, DialFailed); until then the slot stays held. Nothing is
// returned to do: those who wait are served by that answer.
func (a *Arbiter[R]) Drain(c *Conn[R], now int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen(now)
	a.drain(c)
	a.inherit()
}

// Gone frees the slot of a connection of which the server's EOF was seen, or
// whose dial never made a backend. It is usually Draining; a connection that
// the server closed by itself may come here at once.
func (a *Arbiter[R]) Gone(c *Conn[R], now int64, ops *[]Op[R]) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.free(c)
	a.dispatch(now, ops)
}

// free ends c and gives back its slot.
func (a *Arbiter[R]) free(c *Conn[R]) {
	switch c.state {
	case Idle:
		a.unlinkIdle(c)
	case Draining:
		a.disinherit(c)
		a.orphans.remove(&c.inArbiter)
	}
	c.setState(Closed)
	last := len(a.conns) - 1
	a.conns[c.slot] = a.conns[last]
	a.conns[c.slot].slot = c.slot
	a.conns[last] = nil
	a.conns = a.conns[:last]
	c.pool.recount()
}

// Cancel takes w out of its queue, in constant time. True: it was still
// queued, and the caller owns the outcome. False: it is not queued (any more),
// and if it was, an OpGrant or OpFail is on its way and must be taken.
func (a *Arbiter[R]) Cancel(w *Waiter[R]) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.cancel(w)
}

// Expire is Cancel for a waiter that has waited too long; it is counted as a
// timeout.
func (a *Arbiter[R]) Expire(w *Waiter[R]) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.cancel(w) {
		return false
	}
	w.pool.totals.Timeouts++
	a.totals.Timeouts++
	return true
}

func (a *Arbiter[R]) cancel(w *Waiter[R]) bool {
	if !w.queued {
		return false
	}
	w.pool.waiters.remove(w)
	w.pool.removed()
	return true
}
