package connpool

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestOnlyTheDrawnTransitionsAreLegal(t *testing.T) {
	legal := map[[2]State]bool{
		{Dialing, Idle}: true, {Dialing, Active}: true, {Dialing, Draining}: true, {Dialing, Closed}: true,
		{Idle, Active}: true, {Idle, Draining}: true, {Idle, Closed}: true,
		{Active, Idle}: true, {Active, Draining}: true, {Active, Closed}: true,
		{Draining, Closed}: true,
	}
	for from := range numStates {
		for to := range numStates {
			a := New[res](Config{Capacity: 1})
			c := &Conn[res]{id: 7, pool: a.Pool(Key{}), state: from}
			c.pool.n[from], a.n[from] = 1, 1
			msg := panics(func() { c.setState(to) })
			switch {
			case legal[[2]State{from, to}]:
				if msg != "" || c.State() != to || c.pool.n[to] != 1 || a.n[to] != 1 || c.pool.n[from] != 0 || a.n[from] != 0 {
					t.Errorf("%v -> %v: %q, %v, %v", from, to, msg, c.State(), a.n)
				}
			case !strings.HasPrefix(msg, "bug: server connection 7"):
				t.Errorf("%v -> %v: got %q", from, to, msg)
			}
		}
	}
}

// panics returns what f panics with, as text.
func panics(f func()) (msg string) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case error:
			msg = v.Error()
		case string:
			msg = v
		}
	}()
	f()
	return ""
}

func TestBrokenContractsPanicAndLeaveTheLockFree(t *testing.T) {
	r := newRig(t, Config{Capacity: 2})
	p := r.pool("a")
	c := r.open(p, Borrow{})
	w := r.wait(p, Borrow{})
	dial := r.expect(OpDial)[0].Conn
	for name, f := range map[string]func(){
		"put a dial":            func() { r.put(dial) },
		"unclaim a borrowed":    func() { r.a.Unclaimed(c, r.now, &r.ops) },
		"dialed twice":          func() { r.dialed(c, 0) },
		"dial failed too late":  func() { r.dialFailed(c, nil) },
		"queue a queued waiter": func() { r.a.Get(p, w, Borrow{}, r.now, &r.ops) },
	} {
		if msg := panics(f); !strings.HasPrefix(msg, "bug: ") {
			t.Errorf("%s: got %q", name, msg)
		}
	}
	r.a.Stats()
}

func TestJitterIsSubtractiveAndStaysInItsSpread(t *testing.T) {
	for _, random := range []uint64{0, 1, 1 << 63, math.MaxUint64} {
		if d := below(time.Hour, 6*time.Minute, random); d > time.Hour || d <= 54*time.Minute {
			t.Errorf("below(1h, 6m, %d) = %v", random, d)
		}
	}
	if d := below(5, 0, 99); d != 5 {
		t.Errorf("no spread: %v", d)
	}
}

func TestBackoffDoublesUpToItsBound(t *testing.T) {
	for _, tt := range []struct {
		n    int
		want time.Duration
	}{{1, 100 * time.Millisecond}, {2, 200 * time.Millisecond}, {6, 3200 * time.Millisecond}, {7, 5 * time.Second}, {1000, 5 * time.Second}} {
		if got := backoff(tt.n, DefaultRetryMin, DefaultRetryMax, 0); got != tt.want {
			t.Errorf("after %d failures: %v, want %v", tt.n, got, tt.want)
		}
		if got := backoff(tt.n, DefaultRetryMin, DefaultRetryMax, math.MaxUint64); got <= tt.want/2 || got >= tt.want {
			t.Errorf("after %d failures, jittered: %v", tt.n, got)
		}
	}
}

func TestMaxIdleFollowsTheCapacity(t *testing.T) {
	for _, tt := range []struct{ maxIdle, capacity, want int }{
		{0, 100, 100}, {0, 7, 7}, {-1, 100, 0}, {20, 100, 20}, {20, 50, 10}, {20, 1, 1}, {20, 200, 40},
	} {
		c := Config{Capacity: 100, MaxIdle: tt.maxIdle}
		if got := c.maxIdle(tt.capacity); got != tt.want {
			t.Errorf("max idle %d at capacity %d: got %d, want %d", tt.maxIdle, tt.capacity, got, tt.want)
		}
	}
}
