package connpool

import (
	"sync"
	"testing"
	"time"
)

// hot prepares a pool with a few idle connections and returns one borrow and
// return of it.
func hot(t testing.TB) func() {
	r := newRig(t, Config{Capacity: 8, IdleTimeout: time.Minute, MaxLifetime: time.Hour})
	p := r.pool("a")
	var cs []*Conn[res]
	for range 4 {
		cs = append(cs, r.open(p, Borrow{Loop: 1}))
	}
	for _, c := range cs {
		r.put(c)
	}
	w := &Waiter[res]{}
	return func() {
		c, err := r.a.Get(p, w, Borrow{Loop: 1}, r.now, &r.ops)
		if c == nil {
			t.Fatalf("no idle connection: %v", err)
		}
		r.a.Put(c, r.now, &r.ops)
	}
}

// handover prepares a pool with one connection and two waiters, and returns a
// release that is granted, whose former borrower queues again.
func handover(t testing.TB) func() {
	r := newRig(t, Config{Capacity: 1})
	p := r.pool("a")
	c := r.open(p, Borrow{})
	ws := [2]*Waiter[res]{r.wait(p, Borrow{}), {}}
	next := 1
	return func() {
		if _, err := r.a.Get(p, ws[next], Borrow{}, r.now, &r.ops); err != nil {
			t.Fatal(err)
		}
		r.a.Put(c, r.now, &r.ops)
		if len(r.ops) != 1 || r.ops[0].Kind != OpGrant {
			t.Fatalf("got %v", r.ops)
		}
		r.ops = r.ops[:0]
		next = 1 - next
	}
}

func TestTheHotPathDoesNotAllocate(t *testing.T) {
	k := Key{Target: "t", Database: "db", User: "a"}
	r := newRig(t, Config{Capacity: 1})
	r.a.Pool(k)
	for _, tt := range []struct {
		name string
		f    func()
	}{
		{"borrow and return an idle connection", hot(t)},
		{"wait and hand over", handover(t)},
		{"look-up", func() { r.a.Pool(k) }},
	} {
		if n := testing.AllocsPerRun(1000, tt.f); n != 0 {
			t.Errorf("%s: %v allocations", tt.name, n)
		}
	}
}

// slicePool is what the hot path is measured against: a slice and a mutex.
type slicePool struct {
	mu   sync.Mutex
	idle []*Conn[res]
}

func (p *slicePool) pop() *Conn[res] {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(p.idle) - 1
	c := p.idle[last]
	p.idle = p.idle[:last]
	return c
}

func (p *slicePool) push(c *Conn[res]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, c)
}

// BenchmarkIdleHit reports the hot path and the slice pool of the same run,
// interleaved, as a ratio.
func BenchmarkIdleHit(b *testing.B) {
	f := hot(b)
	p := &slicePool{idle: []*Conn[res]{{}, {}, {}, {}}}
	g := func() { p.push(p.pop()) }
	const batch = 1000
	var pool, slice time.Duration
	n := 0
	for b.Loop() {
		t0 := time.Now()
		for range batch {
			f()
		}
		t1 := time.Now()
		for range batch {
			g()
		}
		pool += t1.Sub(t0)
		slice += time.Since(t1)
		n += batch
	}
	b.ReportMetric(float64(pool.Nanoseconds())/float64(n), "pool-ns")
	b.ReportMetric(float64(slice.Nanoseconds())/float64(n), "slice-ns")
	b.ReportMetric(float64(pool)/float64(slice), "ratio")
	b.ReportMetric(0, "ns/op")
}

func BenchmarkHandOver(b *testing.B) {
	f := handover(b)
	b.ReportAllocs()
	for b.Loop() {
		f()
	}
}

func BenchmarkLookUp(b *testing.B) {
	r := newRig(b, Config{Capacity: 1})
	k := Key{Target: "t", Database: "db", User: "a"}
	h := r.a.Pool(k).Handle()
	b.Run("key", func(b *testing.B) {
		for b.Loop() {
			r.a.Pool(k)
		}
	})
	b.Run("handle", func(b *testing.B) {
		for b.Loop() {
			r.a.PoolOf(h)
		}
	})
}

// BenchmarkContended has all processors at one pool.
func BenchmarkContended(b *testing.B) {
	r := newRig(b, Config{Capacity: 64})
	p := r.pool("a")
	var cs []*Conn[res]
	for range 64 {
		cs = append(cs, r.open(p, Borrow{}))
	}
	for _, c := range cs {
		r.put(c)
	}
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		w, ops := &Waiter[res]{}, []Op[res]{}
		for pb.Next() {
			c, err := r.a.Get(p, w, Borrow{}, r.now, &ops)
			if c == nil {
				b.Error("no idle connection:", err)
				return
			}
			r.a.Put(c, r.now, &ops)
		}
	})
}
