package connpool

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// fakeConn is a Resource: one word, parked (bit 0 clear) or claimed (set), and
// its loop above that, as the event loop's connections have it.
type fakeConn struct {
	word  atomic.Int64
	owner atomic.Int64 // stress test: who uses it, 0 = nobody
}

type res = *fakeConn

func (f *fakeConn) TryClaim(loop int) bool {
	w := f.word.Load()
	return w&1 == 0 && f.word.CompareAndSwap(w, int64(loop)<<1|1)
}

func (f *fakeConn) Park() {
	w := f.word.Load()
	if w&1 == 0 {
		panic("fake: parked twice")
	}
	f.word.Store(w &^ 1)
}

func (f *fakeConn) Loop() int { return int(f.word.Load() >> 1) }

// giveTo is what a shell does with a claimed connection for another loop.
func (f *fakeConn) giveTo(loop int) { f.word.Store(int64(loop)<<1 | 1) }

func (f *fakeConn) claimed() bool { return f.word.Load()&1 == 1 }

func newFake(loop int) res {
	f := &fakeConn{}
	f.giveTo(loop)
	return f
}

const (
	ms  = int64(time.Millisecond)
	sec = int64(time.Second)
)

// sqlError is a server's error.
type sqlError string

func (e sqlError) Error() string    { return "server said " + string(e) }
func (e sqlError) SQLState() string { return string(e) }

// rig is a shell on one goroutine with time in its hand.
type rig struct {
	t   testing.TB
	a   *Arbiter[res]
	now int64
	ops []Op[res]
}

func newRig(t testing.TB, cfg Config) *rig {
	if cfg.Rand == nil {
		cfg.Rand = func() uint64 { return 0 }
	}
	return &rig{t: t, a: New[res](cfg), now: sec}
}

func (r *rig) pool(user string) *UserPool[res] {
	return r.a.Pool(Key{Target: "t", Database: "db", User: user})
}

// take returns the ops since the last take.
func (r *rig) take() []Op[res] {
	ops := slices.Clone(r.ops)
	r.ops = r.ops[:0]
	audit(r.t, r.a, false)
	return ops
}

// expect takes the ops and compares their kinds.
func (r *rig) expect(kinds ...OpKind) []Op[res] {
	r.t.Helper()
	ops := r.take()
	var got []OpKind
	for _, op := range ops {
		got = append(got, op.Kind)
	}
	if !slices.Equal(got, kinds) {
		r.t.Fatalf("ops: got %v, want %v", got, kinds)
	}
	return ops
}

func (r *rig) tryGet(p *UserPool[res], b Borrow) (*Conn[res], *Waiter[res], error) {
	w := &Waiter[res]{}
	c, err := r.a.Get(p, w, b, r.now, &r.ops)
	return c, w, err
}

// get must be served at once.
func (r *rig) get(p *UserPool[res], b Borrow) *Conn[res] {
	r.t.Helper()
	c, _, err := r.tryGet(p, b)
	if c == nil {
		r.t.Fatalf("Get: got nil, %v, want a connection", err)
	}
	return c
}

// wait must be queued.
func (r *rig) wait(p *UserPool[res], b Borrow) *Waiter[res] {
	r.t.Helper()
	c, w, err := r.tryGet(p, b)
	if c != nil || err != nil {
		r.t.Fatalf("Get: got %v, %v, want to be queued", c, err)
	}
	return w
}

// open borrows through a dial that succeeds.
func (r *rig) open(p *UserPool[res], b Borrow) *Conn[res] {
	r.t.Helper()
	w := r.wait(p, b)
	c := r.expect(OpDial)[0].Conn
	r.a.Dialed(c, newFake(b.Loop), r.now, &r.ops)
	if got := r.expect(OpGrant)[0]; got.Waiter != w || got.Conn != c {
		r.t.Fatal("the dial's waiter did not get its connection")
	}
	return c
}

func (r *rig) put(c *Conn[res])                   { r.a.Put(c, r.now, &r.ops) }
func (r *rig) gone(c *Conn[res])                  { r.a.Gone(c, r.now, &r.ops) }
func (r *rig) dialFailed(c *Conn[res], err error) { r.a.DialFailed(c, err, r.now, &r.ops) }
func (r *rig) dialed(c *Conn[res], loop int)      { r.a.Dialed(c, newFake(loop), r.now, &r.ops) }
func (r *rig) tick(loop int)                      { r.a.Tick(loop, r.now, &r.ops) }

func length[T any](l *list[T]) (n int) {
	for k := l.head; k != nil; k = k.next {
		n++
	}
	return n
}

// audit recomputes from the lists everything the Arbiter counts, and checks
// what must hold between two calls. afterDrain: the last call was Drain, which
// returns no ops, so that over capacity its waiter may have to wait for the
// next call before an idle connection of another pool is closed for it.
func audit(t interface{ Fatalf(string, ...any) }, a *Arbiter[res], afterDrain bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	bug := func(format string, args ...any) { t.Fatalf("audit: %s", fmt.Sprintf(format, args...)) }

	type sum struct {
		n     [numStates]int
		heirs int
	}
	total := [numStates]int{}
	pools := map[*UserPool[res]]*sum{}
	for i, p := range a.pools {
		if p.index != i || p.gone {
			bug("pool %d has index %d, gone %v", i, p.index, p.gone)
		}
		pools[p] = &sum{}
	}
	claimable := map[*UserPool[res]]bool{}
	anyClaimable := false
	for i, c := range a.conns {
		if c.slot != i {
			bug("connection %d at %d thinks it is at %d", c.id, i, c.slot)
		}
		tl := pools[c.pool]
		if tl == nil {
			bug("connection %d belongs to a forgotten pool", c.id)
		}
		tl.n[c.state]++
		total[c.state]++
		if (c.heir != nil) && c.state != Draining {
			bug("connection %d is %v and has an heir", c.id, c.state)
		}
		if c.heir != nil {
			pools[c.heir].heirs++
		}
		switch c.state {
		case Closed:
			bug("a closed connection holds a slot")
		case Idle:
			if !c.res.claimed() {
				claimable[c.pool], anyClaimable = true, true
			}
		case Active:
			if !c.res.claimed() {
				bug("connection %d is active and parked", c.id)
			}
		}
	}
	waiting, idle := 0, 0
	for p, tl := range pools {
		for s := range Closed {
			if p.n[s] != tl.n[s] {
				bug("pool %v counts %d %v, has %d", p.key, p.n[s], s, tl.n[s])
			}
		}
		if p.heirs != tl.heirs {
			bug("pool %v counts %d heirs, has %d", p.key, p.heirs, tl.heirs)
		}
		n, last := 0, uint64(0)
		for k := p.waiters.all.head; k != nil; k = k.next {
			if n++; k.owner.seq <= last || !k.owner.queued || k.owner.pool != p {
				bug("pool %v: queue out of order", p.key)
			}
			if k.owner.skips > max(a.cfg.MaxSkips, 0) {
				bug("a waiter was overtaken %d times", k.owner.skips)
			}
			last = k.owner.seq
		}
		local := 0
		for _, l := range p.waiters.byLoop {
			local += length(&l)
		}
		if n != p.waiters.n || n != local {
			bug("pool %v: %d waiters in the queue, %d counted, %d by loop", p.key, n, p.waiters.n, local)
		}
		waiting += n
		n = 0
		for k := p.idle.head; k != nil; k = k.next {
			if n++; k.owner.state != Idle || k.owner.pool != p {
				bug("connection %d is in the idle list and %v", k.owner.id, k.owner.state)
			}
		}
		if n != tl.n[Idle] {
			bug("pool %v: %d in the idle list, %d idle", p.key, n, tl.n[Idle])
		}
		idle += n
		if in := p.heap >= 0; in != (p.need() > 0) || in && a.needy[p.heap] != p {
			bug("pool %v: need %d, heap index %d", p.key, p.need(), p.heap)
		}
		if a.closed {
			continue
		}
		// No waiter is starved.
		if p.waiters.n > 0 && claimable[p] {
			bug("pool %v has waiters and a claimable idle connection", p.key)
		}
		if p.need() > 0 && len(a.conns) < a.limit() {
			bug("pool %v needs %d with %d of %d slots held", p.key, p.need(), len(a.conns), a.limit())
		}
		if p.need() > 0 && anyClaimable && (!afterDrain || len(a.conns) <= a.limit()) {
			bug("pool %v needs %d, and another pool has a claimable idle connection", p.key, p.need())
		}
	}
	if waiting != a.waiting || idle != length(&a.lru) || !slices.Equal(total[:Closed], a.n[:Closed]) {
		bug("waiting %d/%d, idle %d/%d, states %v/%v", waiting, a.waiting, idle, length(&a.lru), total, a.n)
	}
	if o, b := length(&a.orphans), length(&a.bequeathed); o+b != total[Draining] || b != a.heirs {
		bug("%d orphans + %d bequeathed, %d draining, %d heirs", o, b, total[Draining], a.heirs)
	}
	if a.closed && (waiting > 0 || anyClaimable) {
		bug("closed with %d waiters, claimable idle connections: %v", waiting, anyClaimable)
	}
	if w := length(&a.waits); w > 0 != (waiting > 0) {
		bug("%d pools with waiters, %d waiters", w, waiting)
	}
}
