package connpool

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
)

func TestOneKeyHasOnePoolWhoeverAsks(t *testing.T) {
	a := New[res](Config{Capacity: 1})
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[*UserPool[res]]bool{}
	for range 8 {
		wg.Go(func() {
			for u := range 50 {
				p := a.Pool(Key{User: fmt.Sprint(u)})
				mu.Lock()
				seen[p] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(seen) != 50 || len(a.Pools()) != 50 || a.Stats().Pools != 50 {
		t.Fatalf("got %d pools, %d listed, %d counted; want 50", len(seen), len(a.Pools()), a.Stats().Pools)
	}
}

func TestAnInactivePoolIsForgottenAndItsNextGetFindsTheSuccessor(t *testing.T) {
	r := newRig(t, Config{Capacity: 2})
	p := r.pool("a")
	c := r.open(p, Borrow{})
	r.now += int64(DefaultInactiveTimeout)
	r.tick(0)
	r.expect()
	if r.pool("a") != p {
		t.Fatal("a pool with a connection in use was forgotten")
	}
	r.gone(c)
	r.now += sec
	r.tick(0)
	r.expect()
	if n := r.a.Stats().Pools; n != 0 {
		t.Fatalf("%d pools left", n)
	}
	c = r.open(p, Borrow{}) // by a session that still points at the old one
	if c.Pool() == p || c.Pool() != r.pool("a") {
		t.Fatal("the connection is not in the successor")
	}
	r.put(c)
	if r.get(p, Borrow{}) != c {
		t.Fatal("the old pointer does not reach the successor's idle connection")
	}
}

func TestPoolsAreBoundedAndEmptyOnesMakeRoom(t *testing.T) {
	r := newRig(t, Config{Capacity: 4, MaxPools: 2})
	c := r.open(r.pool("a"), Borrow{})
	r.pool("b")
	if p := r.pool("c"); p == nil {
		t.Fatal("the empty pool did not make room")
	}
	r.open(r.pool("c"), Borrow{})
	p := r.pool("d")
	if p != nil {
		t.Fatal("a third pool")
	}
	_, _, err := r.tryGet(p, Borrow{})
	refused, ok := errors.AsType[*RefusedError](err)
	if !ok || refused.Limit != 2 || refused.Value != 2 || strings.Contains(err.Error(), "raise") {
		t.Fatalf("got %v", err)
	}
	r.gone(c)
	if r.pool("d") == nil {
		t.Fatal("room, and no pool")
	}
}
