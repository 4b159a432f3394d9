package connpool

import "fmt"

// Dialed reports that the connection of an OpDial is logged in, and hands it
// over: r is owned by the caller until now. It goes to a waiter (OpGrant), is
// parked, or, when it was drained meanwhile or is not wanted any more, is to be
// terminated (OpClose).
func (a *Arbiter[R]) Dialed(c *Conn[R], r R, now int64, ops *[]Op[R]) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c.res, c.openedAt = r, now
	p := c.pool
	p.health, p.failures, p.lastErr = healthy, 0, nil
	if c.state == Draining {
		*ops = append(*ops, Op[R]{Kind: OpClose, Loop: r.Loop(), Conn: c, Pool: p})
		p.recount()
		a.dispatch(now, ops)
		return
	}
	if c.state != Dialing {
		panic(fmt.Sprintf("bug: Dialed of server connection %d, which is %v", c.id, c.state))
	}
	if d := a.cfg.MaxLifetime; d > 0 {
		c.retireAt = now + int64(below(d, d/lifetimeSpread, a.cfg.Rand()))
	}
	a.settle(c, now, ops)
	p.recount()          // one dial less, and the pool is healthy:
	a.dispatch(now, ops) // more dials may be allowed now
}

// DialFailed reports that an OpDial came to nothing and that the server has no
// backend of it. The slot is free again. When nothing else serves the pool, its
// waiters fail with err, and until the back-off ends further Gets do so at once;
// otherwise they stay, and the dial is retried after the back-off, by Get or
// Tick. When err says 53300 (SQLState), the server is full and waiting helps:
// waiters stay, and no more slots than are held now are used for a while.
func (a *Arbiter[R]) DialFailed(c *Conn[R], err error, now int64, ops *[]Op[R]) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.state != Dialing && c.state != Draining {
		panic(fmt.Sprintf("bug: DialFailed of server connection %d, which is %v", c.id, c.state))
	}
	a.free(c)
	p := c.pool
	p.totals.DialFailures++
	a.totals.DialFailures++
	if p.health != blocked { // several dials that fail together are one failure
		p.failures++
		p.health = blocked
		p.notBefore = now + int64(backoff(p.failures, a.cfg.RetryMin, a.cfg.RetryMax, a.cfg.Rand()))
	}
	if serverIsFull(err) {
		p.lastErr = nil
		a.refused = max(1, len(a.conns)) // with 0, nobody would find out when there is room again
		a.until = now + int64(a.cfg.RefusalHold)
	} else {
		p.lastErr = err
		if p.live() == 0 {
			a.failAll(p, err, ops)
		}
	}
	p.recount()
	a.dispatch(now, ops)
}

// failAll removes all waiters of p.
func (a *Arbiter[R]) failAll(p *UserPool[R], err error, ops *[]Op[R]) {
	for w := p.waiters.all.front(); w != nil; w = p.waiters.all.front() {
		p.waiters.remove(w)
		p.removed()
		*ops = append(*ops, Op[R]{Kind: OpFail, Loop: w.borrow.Loop, Waiter: w, Pool: p, Err: err})
	}
}

// RetryAt is the earliest instant at which Tick has something to retry, and
// false when there is nothing: a shell that does not want to wait for its next
// Tick may arm a timer. It looks at as many waiting pools as Tick does.
func (a *Arbiter[R]) RetryAt() (at int64, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at = neverNS
	for i, k := 0, a.waits.head; i < tickPools && k != nil; i, k = i+1, k.next {
		if p := k.owner; p.health == blocked {
			at = min(at, p.notBefore)
		}
	}
	if a.until != 0 && a.waiting > 0 {
		at = min(at, a.until)
	}
	return at, at != neverNS
}
