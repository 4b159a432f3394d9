package connpool

// idleScan bounds the search for a connection with the right settings on the
// right loop. Beyond it any connection is as good.
const idleScan = 16

// takeIdle claims an idle connection of p for b, and nil when there is none
// that can be claimed. Among the newest ones it prefers equal settings on the
// same loop, then equal settings (saves a round trip), then the same loop (saves
// two system calls), then the newest.
func (p *UserPool[R]) takeIdle(b Borrow) *Conn[R] {
	k := p.idle.head
	if k == nil {
		return nil
	}
	if c := k.owner; c.settings == b.Settings && c.loop == b.Loop && c.res.TryClaim(b.Loop) {
		p.arb.borrowIdle(c, b)
		return c
	}
	return p.searchIdle(b)
}

// searchIdle is the slow half of takeIdle.
func (p *UserPool[R]) searchIdle(b Borrow) *Conn[R] {
	var best [3]*Conn[R] // the newest per quality, but the best quality is taken at sight
	k := p.idle.head
	for i := 0; i < idleScan && k != nil; i, k = i+1, k.next {
		c := k.owner
		q := 0
		if c.settings == b.Settings {
			q = 2
		}
		if c.loop == b.Loop {
			q++
		}
		if q == 3 {
			if c.res.TryClaim(b.Loop) {
				p.arb.borrowIdle(c, b)
				return c
			}
		} else if best[q] == nil {
			best[q] = c
		}
	}
	for q := 2; q >= 0; q-- {
		if c := best[q]; c != nil && c.res.TryClaim(b.Loop) {
			p.arb.borrowIdle(c, b)
			return c
		}
	}
	return p.takeAnyIdle(b)
}

// takeAnyIdle tries all of them, newest first: the preferred ones were being
// looked at by their loops. It ends at the first success, so its length is
// bounded by the failures.
func (p *UserPool[R]) takeAnyIdle(b Borrow) *Conn[R] {
	for k := p.idle.head; k != nil; k = k.next {
		if c := k.owner; c.res.TryClaim(b.Loop) {
			p.arb.borrowIdle(c, b)
			return c
		}
	}
	return nil
}

// borrowIdle lends c, which has just been claimed for b.Loop.
func (a *Arbiter[R]) borrowIdle(c *Conn[R], b Borrow) {
	if c.loop != b.Loop {
		c.pool.totals.CrossLoop++
		a.totals.CrossLoop++
	}
	a.unlinkIdle(c)
	c.setState(Active)
	c.borrow, c.loop = b, b.Loop
}

// unlinkIdle takes c, which is Idle and about not to be, out of the idle lists.
func (a *Arbiter[R]) unlinkIdle(c *Conn[R]) {
	c.pool.idle.remove(&c.inPool)
	a.lru.remove(&c.inArbiter)
}

// claimOldest claims the connection of all pools that has been idle longest,
// for the loop it is parked on; nil when none can be claimed. Connections that
// their loops are looking at are stepped over.
func (a *Arbiter[R]) claimOldest() *Conn[R] {
	for k := a.lru.head; k != nil; k = k.next {
		if c := k.owner; c.res.TryClaim(c.loop) {
			return c
		}
	}
	return nil
}
