package connpool

import "unique"

// Key identifies a user pool: server connections are logged in as one user to
// one database of one target.
type Key struct {
	Target, Database, User string
	// Startup tells server connections apart that were opened with different
	// startup packets; "" for nearly all.
	Startup string
}

// Handle is an interned Key: one word to compare and to hash.
type Handle = unique.Handle[Key]

// health is what a pool knows of its last dial.
type health uint8

const (
	healthy health = iota // the last dial worked, or there was none
	blocked               // it failed: no dial before notBefore
	probing               // the pause is over: one dial at a time until one works
)

// UserPool is the part of a target's slots and waiters that belongs to one Key.
// It may be kept for as long as a session lives: when the Arbiter has forgotten
// it meanwhile, Get finds its successor.
type UserPool[R Resource] struct {
	arb    *Arbiter[R]
	handle Handle
	key    Key

	// Guarded by the Arbiter's lock.
	index    int // in Arbiter.pools
	gone     bool
	lastUsed int64
	n        tally
	idle     list[Conn[R]] // newest first
	waiters  queue[R]
	inWaits  link[UserPool[R]] // member of Arbiter.waits while it has waiters

	heirs int // draining connections whose slot this pool waits for
	heap  int // index in Arbiter.needy; -1: not in need

	health    health
	failures  int   // dials failed in a row
	notBefore int64 // blocked: end of the pause
	lastErr   error // blocked, probing: why; nil: the server was full, so waiting helps

	totals Totals
}

// Key is the pool's identity.
func (p *UserPool[R]) Key() Key { return p.key }

// Handle is the pool's identity in one word.
func (p *UserPool[R]) Handle() Handle { return p.handle }

// live counts the connections that serve the pool or are about to.
func (p *UserPool[R]) live() int { return p.n[Dialing] + p.n[Idle] + p.n[Active] }

// empty: nothing of it is in any list of the Arbiter. (A pool whose waiters
// have gone may still be the heir of a drain.)
func (p *UserPool[R]) empty() bool {
	return p.waiters.n == 0 && p.live()+p.n[Draining] == 0 && p.heirs == 0
}

// incoming counts the slots on their way to the pool's waiters.
func (p *UserPool[R]) incoming() int { return p.n[Dialing] + p.heirs }

// need is how many more slots the pool should be brought: dials never exceed
// waiters, and a pool whose last dial failed has at most one on the way.
func (p *UserPool[R]) need() int {
	want := p.waiters.n
	switch p.health {
	case blocked:
		return 0
	case probing:
		want = min(want, 1)
	}
	return want - p.incoming()
}

// refresh ends the pool's back-off when its time has come.
func (p *UserPool[R]) refresh(now int64) {
	if p.health == blocked && now >= p.notBefore {
		p.health = probing
		p.recount()
	}
}

// enqueue makes w the last in the pool's queue.
func (p *UserPool[R]) enqueue(w *Waiter[R], b Borrow, now int64) {
	a := p.arb
	a.seq++
	w.pool, w.borrow, w.seq, w.since, w.skips = p, b, a.seq, now, 0
	p.waiters.push(w)
	if p.waiters.n == 1 {
		a.waits.pushBack(&p.inWaits)
	}
	a.waiting++
	p.recount()
}

// removed follows each removal of a waiter from the pool's queue.
func (p *UserPool[R]) removed() {
	p.arb.waiting--
	if p.waiters.n == 0 {
		p.arb.waits.remove(&p.inWaits)
	}
	p.recount()
}

// recount follows each change of waiters, dials, inheritances or health: it
// puts the pool at its place among those in need, or takes it away.
func (p *UserPool[R]) recount() {
	h := &p.arb.needy
	switch in := p.heap >= 0; {
	case p.need() > 0 && in:
		h.fix(p)
	case p.need() > 0:
		h.push(p)
	case in:
		h.remove(p)
	}
}

// needy is a min-heap of the pools in need of slots, by arrival of their heads.
// (Of a pool with several waiters, some with a slot on its way, the head stands
// for all: exact to the order of pools, not of waiters.)
type needy[R Resource] []*UserPool[R]

func (h needy[R]) top() *UserPool[R] {
	if len(h) == 0 {
		return nil
	}
	return h[0]
}

func (h needy[R]) less(i, j int) bool {
	return h[i].waiters.all.front().seq < h[j].waiters.all.front().seq
}

func (h needy[R]) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heap, h[j].heap = i, j
}

func (h *needy[R]) push(p *UserPool[R]) {
	p.heap = len(*h)
	*h = append(*h, p)
	h.up(p.heap)
}

// remove may see p without waiters, so p is never compared: it is swapped with
// the last, cut off, and only the one that took its place is moved.
func (h *needy[R]) remove(p *UserPool[R]) {
	i, last := p.heap, len(*h)-1
	h.swap(i, last)
	(*h)[last] = nil
	*h = (*h)[:last]
	p.heap = -1
	if i < last {
		h.fix((*h)[i])
	}
}

func (h needy[R]) fix(p *UserPool[R]) {
	if !h.down(p.heap) {
		h.up(p.heap)
	}
}

func (h needy[R]) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !h.less(i, parent) {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

func (h needy[R]) down(i int) (moved bool) {
	for {
		child := 2*i + 1
		if child >= len(h) {
			return moved
		}
		if right := child + 1; right < len(h) && h.less(right, child) {
			child = right
		}
		if !h.less(child, i) {
			return moved
		}
		h.swap(i, child)
		i, moved = child, true
	}
}
