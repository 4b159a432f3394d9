package connpool

import (
	"maps"
	"sync"
	"sync/atomic"
	"unique"
)

// registry is the set of user pools: an immutable map, replaced as a whole. A
// reader loads one pointer and reads one map.
type registry[R Resource] struct {
	mu    sync.Mutex // serialises the writers
	byKey atomic.Pointer[map[Handle]*UserPool[R]]
}

// Pool finds or makes the user pool of k. Nil: there are MaxPools, none of them
// empty; Get answers that with the refusal.
func (a *Arbiter[R]) Pool(k Key) *UserPool[R] { return a.PoolOf(unique.Make(k)) }

// PoolOf is Pool for a Key that is interned already.
func (a *Arbiter[R]) PoolOf(h Handle) *UserPool[R] {
	if p := (*a.registry.byKey.Load())[h]; p != nil {
		return p
	}
	return a.create(h)
}

// create looks again, and makes the pool when it is still missing. It also
// waits for a collection in progress, so its answer is not one that was
// forgotten before the call.
func (a *Arbiter[R]) create(h Handle) *UserPool[R] {
	a.registry.mu.Lock()
	defer a.registry.mu.Unlock()
	old := *a.registry.byKey.Load()
	if p := old[h]; p != nil {
		return p
	}
	byKey := maps.Clone(old)
	p := &UserPool[R]{arb: a, handle: h, key: h.Value(), heap: -1}
	p.inWaits.owner = p

	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.pools) >= a.cfg.MaxPools {
		victim := a.emptyPool()
		if victim == nil {
			return nil
		}
		a.forget(victim)
		delete(byKey, victim.handle)
	}
	p.lastUsed = a.lastNow
	p.index = len(a.pools)
	a.pools = append(a.pools, p)
	byKey[h] = p
	a.registry.byKey.Store(&byKey)
	return p
}

// emptyPool finds, among the next few, a pool that can be forgotten early.
func (a *Arbiter[R]) emptyPool() *UserPool[R] {
	for range min(tickPools, len(a.pools)) {
		if p := a.nextPool(); p.empty() {
			return p
		}
	}
	return nil
}

// nextPool goes round all pools, a step at a time.
func (a *Arbiter[R]) nextPool() *UserPool[R] {
	if a.poolHand >= len(a.pools) {
		a.poolHand = 0
	}
	p := a.pools[a.poolHand]
	a.poolHand++
	return p
}

// forget takes an empty pool out of the list. Sessions may still point at it:
// their next Get finds its successor.
func (a *Arbiter[R]) forget(p *UserPool[R]) {
	if !p.empty() {
		panic("bug: forgetting a user pool that is in use")
	}
	p.gone = true
	last := len(a.pools) - 1
	a.pools[p.index] = a.pools[last]
	a.pools[p.index].index = p.index
	a.pools[last] = nil
	a.pools = a.pools[:last]
}

// inactive lists those of the next few pools that nobody has used for a while.
func (a *Arbiter[R]) inactive(now int64) (stale []*UserPool[R]) {
	for range min(tickPools, len(a.pools)) {
		if p := a.nextPool(); a.isInactive(p, now) {
			stale = append(stale, p)
		}
	}
	return stale
}

func (a *Arbiter[R]) isInactive(p *UserPool[R], now int64) bool {
	return !p.gone && p.empty() && now-p.lastUsed >= int64(a.cfg.InactiveTimeout)
}

// collect forgets the pools that are still inactive. Called without the lock.
func (a *Arbiter[R]) collect(stale []*UserPool[R], now int64) {
	a.registry.mu.Lock()
	defer a.registry.mu.Unlock()
	byKey := maps.Clone(*a.registry.byKey.Load())

	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range stale {
		if a.isInactive(p, now) {
			a.forget(p)
			delete(byKey, p.handle)
		}
	}
	a.registry.byKey.Store(&byKey)
}

// successor finds the pool that has taken the place of p, which was forgotten
// while a session remembered it. Called with the lock, which it lets go of
// meanwhile because of the lock order.
func (a *Arbiter[R]) successor(p *UserPool[R]) *UserPool[R] {
	for p != nil && p.gone {
		h := p.handle
		a.mu.Unlock()
		p = a.create(h)
		a.mu.Lock()
	}
	return p
}

func (a *Arbiter[R]) refusePool() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.refusePoolLocked()
}

func (a *Arbiter[R]) refusePoolLocked() error {
	a.totals.Refused++
	return &RefusedError{
		What: "user pools", Value: len(a.pools), Limit: a.cfg.MaxPools,
		InUse: a.n[Active], Capacity: a.capacity,
	}
}
