package connpool

// Totals only grow.
type Totals struct {
	Gets         uint64 // borrows asked for
	Waits        uint64 // of them queued
	Grants       uint64 // waiters served
	CrossLoop    uint64 // borrows served by a connection of another loop
	Timeouts     uint64 // waiters taken out by Expire
	Refused      uint64 // Gets refused because a bound was reached
	FailedFast   uint64 // Gets refused because the server is known to be down
	Dials        uint64
	DialFailures uint64
	Switches     uint64 // connections closed at release for another pool's waiter
	Evictions    uint64 // idle connections closed for another pool, a smaller capacity or Close
	Expired      uint64 // idle connections closed for age or idleness
}

// Counts is the number of connections per state.
type Counts struct{ Dialing, Idle, Active, Draining int }

// Held is the number of slots held.
func (c Counts) Held() int { return c.Dialing + c.Idle + c.Active + c.Draining }

// InUse is the number of connections lent.
func (c Counts) InUse() int { return c.Active }

func counts(n *tally) Counts {
	return Counts{Dialing: n[Dialing], Idle: n[Idle], Active: n[Active], Draining: n[Draining]}
}

// Stats is a consistent picture of one target.
type Stats struct {
	Counts
	Capacity     int // slots, as configured or resized
	Effective    int // slots that may be held now; lower after a 53300 of the server
	Pools        int
	Waiting      int
	WaitingSince int64 // arrival of the oldest waiter; meaningless when Waiting is 0
	Closed       bool
	Totals       Totals
}

// PoolStats is a consistent picture of one user pool.
type PoolStats struct {
	Key Key
	Counts
	Waiting      int
	WaitingSince int64 // arrival of the oldest waiter; meaningless when Waiting is 0
	Down         error // what the last dial failed with, nil when it worked
	LastUsed     int64
	Totals       Totals
}

// Stats looks at each pool that has waiters.
func (a *Arbiter[R]) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := Stats{
		Counts: counts(&a.n), Capacity: a.capacity, Effective: a.limit(),
		Pools: len(a.pools), Waiting: a.waiting,
		Closed: a.closed, Totals: a.totals,
	}
	for k := a.waits.head; k != nil; k = k.next {
		since := k.owner.waiters.all.front().since
		if k == a.waits.head || since < s.WaitingSince {
			s.WaitingSince = since
		}
	}
	return s
}

// Stats is the pool's part.
func (p *UserPool[R]) Stats() PoolStats {
	p.arb.mu.Lock()
	defer p.arb.mu.Unlock()
	s := PoolStats{
		Key: p.key, Counts: counts(&p.n), Waiting: p.waiters.n,
		Down: p.lastErr, LastUsed: p.lastUsed, Totals: p.totals,
	}
	if w := p.waiters.all.front(); w != nil {
		s.WaitingSince = w.since
	}
	return s
}

// Pools is the user pools of this moment, in no order; the lock is not taken.
func (a *Arbiter[R]) Pools() []*UserPool[R] {
	byKey := *a.registry.byKey.Load()
	pools := make([]*UserPool[R], 0, len(byKey))
	for _, p := range byKey {
		pools = append(pools, p)
	}
	return pools
}
