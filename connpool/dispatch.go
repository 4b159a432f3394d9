package connpool

// limit is how many slots may be held now.
func (a *Arbiter[R]) limit() int {
	if a.until != 0 {
		return min(a.capacity, a.refused)
	}
	return a.capacity
}

// seen remembers the time for those calls that are not told it.
func (a *Arbiter[R]) seen(now int64) { a.lastNow = max(a.lastNow, now) }

// refresh ends what the server's refusal has lowered when its time has come.
func (a *Arbiter[R]) refresh(now int64) {
	a.seen(now)
	if a.until != 0 && now >= a.until {
		a.until, a.refused = 0, 0
	}
}

// dispatch brings slots to the pools in need, the one whose head came first
// being first: it dials while slots are free, and otherwise sees to it that a
// slot is on its way for each waiter, as long as idle connections can be closed
// for that. Each step either dials, takes one pool's need away or closes one
// idle connection, so it ends.
//
// It runs after everything that frees a slot, raises the limit or adds need.
func (a *Arbiter[R]) dispatch(now int64, ops *[]Op[R]) {
	a.refresh(now)
	if a.closed {
		return
	}
	for {
		if len(a.conns) < a.limit() {
			if p := a.needy.top(); p != nil {
				a.dial(p, ops)
				continue
			}
			// Nobody is in need, but somebody may wait for a drain to end:
			// the free slot is sooner.
			c := a.bequeathed.front()
			if c == nil {
				return
			}
			a.disinherit(c)
			continue
		}
		a.inherit()
		if a.needy.top() == nil {
			return
		}
		c := a.claimOldest()
		if c == nil {
			return
		}
		a.totals.Evictions++
		c.pool.totals.Evictions++
		a.retire(c, ops)
	}
}

// inherit gives the slots of draining connections, as far as they will be free
// under the limit, to the pools in need.
func (a *Arbiter[R]) inherit() {
	live := len(a.conns) - a.n[Draining]
	for room := a.limit() - live - a.heirs; room > 0; room-- {
		c, p := a.orphans.front(), a.needy.top()
		if c == nil || p == nil {
			return
		}
		a.orphans.remove(&c.inArbiter)
		a.bequeathed.pushBack(&c.inArbiter)
		c.heir = p
		p.heirs++
		a.heirs++
		p.recount()
	}
}

// disinherit makes a draining connection an orphan; its heir is in need again.
func (a *Arbiter[R]) disinherit(c *Conn[R]) {
	p := c.heir
	if p == nil {
		return
	}
	c.heir = nil
	a.bequeathed.remove(&c.inArbiter)
	a.orphans.pushBack(&c.inArbiter)
	p.heirs--
	a.heirs--
	p.recount()
}

// dial takes a slot for p.
func (a *Arbiter[R]) dial(p *UserPool[R], ops *[]Op[R]) {
	a.connID++
	c := &Conn[R]{id: a.connID, pool: p, state: Dialing, slot: len(a.conns), retireAt: neverNS}
	c.inPool.owner, c.inArbiter.owner = c, c
	a.conns = append(a.conns, c)
	a.n[Dialing]++
	p.n[Dialing]++
	a.totals.Dials++
	p.totals.Dials++
	p.recount()
	*ops = append(*ops, Op[R]{Kind: OpDial, Loop: p.waiters.all.front().borrow.Loop, Conn: c, Pool: p})
}
