package connpool

// Bounds of what one Tick looks at under the lock. A connection outlives its
// timeouts by at most len(conns)/tickConns Ticks of its loop.
const (
	tickConns = 256
	tickPools = 64
)

// Tick does what time demands, for one loop, about once a second: it closes
// connections parked on the loop whose idle timeout or lifetime is over, retries
// dials after their back-off, and forgets inactive user pools.
func (a *Arbiter[R]) Tick(loop int, now int64, ops *[]Op[R]) {
	if stale := a.tick(loop, now, ops); len(stale) > 0 {
		a.collect(stale, now)
	}
}

func (a *Arbiter[R]) tick(loop int, now int64, ops *[]Op[R]) []*UserPool[R] {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.retry(now)
	a.expire(loop, now, ops)
	a.dispatch(now, ops)
	return a.inactive(now)
}

// retry ends the back-off of the next few waiting pools whose time has come,
// and moves them to the end.
func (a *Arbiter[R]) retry(now int64) {
	first := a.waits.front()
	for i, p := 0, first; i < tickPools && p != nil; i++ {
		a.waits.remove(&p.inWaits)
		a.waits.pushBack(&p.inWaits)
		p.refresh(now)
		if p = a.waits.front(); p == first {
			return
		}
	}
}

// expire goes on where the loop's last Tick stopped.
func (a *Arbiter[R]) expire(loop int, now int64, ops *[]Op[R]) {
	for loop >= len(a.connHand) {
		a.connHand = append(a.connHand, 0)
	}
	hand := a.connHand[loop]
	for range min(tickConns, len(a.conns)) {
		if hand >= len(a.conns) {
			hand = 0
		}
		c := a.conns[hand]
		hand++
		if c.state != Idle || c.loop != loop {
			continue
		}
		timeout := int64(a.cfg.IdleTimeout)
		over := now >= c.retireAt || timeout > 0 && now-c.idleSince >= timeout
		if over && c.res.TryClaim(loop) {
			a.totals.Expired++
			c.pool.totals.Expired++
			a.retire(c, ops)
		}
	}
	a.connHand[loop] = hand
}

// SetCapacity changes the number of slots, at least 1, and never blocks. When
// there are more connections than that, idle ones are closed, the longest idle
// first, and others when they come back.
func (a *Arbiter[R]) SetCapacity(n int, now int64, ops *[]Op[R]) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.capacity = max(1, n)
	a.maxIdle = a.cfg.maxIdle(a.capacity)
	a.closeIdle(ops, func() bool {
		return len(a.conns)-a.n[Draining] > a.capacity || a.n[Idle] > a.maxIdle
	})
	a.dispatch(now, ops)
}

// Reconfigure takes over the capacity, the other bounds and the timeouts of
// cfg; MaxPools, the back-off and what decide goes by stay as they are. Open
// connections keep the lifetime that they were opened with.
func (a *Arbiter[R]) Reconfigure(cfg Config, now int64, ops *[]Op[R]) {
	cfg = cfg.withDefaults()
	a.mu.Lock()
	a.cfg.Capacity, a.cfg.MaxIdle, a.cfg.MaxWaiters = cfg.Capacity, cfg.MaxIdle, cfg.MaxWaiters
	a.cfg.IdleTimeout, a.cfg.MaxLifetime, a.cfg.InactiveTimeout = cfg.IdleTimeout, cfg.MaxLifetime, cfg.InactiveTimeout
	a.mu.Unlock()
	a.SetCapacity(cfg.Capacity, now, ops)
}

// Close begins the end: waiters and later Gets fail with ErrClosed, idle
// connections are to be closed now, all others when they come back. The target
// is free of us when Stats().Held is 0.
func (a *Arbiter[R]) Close(ops *[]Op[R]) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for p := a.waits.front(); p != nil; p = a.waits.front() {
		a.failAll(p, ErrClosed, ops)
	}
	a.closeIdle(ops, func() bool { return true })
}

// closeIdle closes idle connections, the longest idle first, while more says
// so. Those that their loops are looking at are met again at Unclaimed.
func (a *Arbiter[R]) closeIdle(ops *[]Op[R], more func() bool) {
	for k := a.lru.head; k != nil && more(); {
		c := k.owner
		k = k.next // retire takes c out of the list
		if c.res.TryClaim(c.loop) {
			a.totals.Evictions++
			c.pool.totals.Evictions++
			a.retire(c, ops)
		}
	}
}
